"""A training as users have it: transformers' Trainer with its own flags, and one line for a search."""

# pyright: basic, reportMissingImports=false, reportArgumentType=false

import torch
from step_lines import StepLines
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, VOCABULARY = 64, 2048


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)
Trainer(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=Tokens(),
    callbacks=[StepLines()],
).train()
