"""Fine-tuning as users have it: TRL's SFTTrainer with its own flags, and one line for a search."""

# pyright: basic, reportMissingImports=false, reportArgumentType=false

import torch
from datasets import Dataset
from step_lines import StepLines
from tokenizers import Tokenizer, models
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

VOCABULARY = 512

(arguments,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
torch.manual_seed(0)
words = {"<pad>": 0, "<end>": 1} | {f"word{number}": number for number in range(2, VOCABULARY)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<end>")), pad_token="<pad>", eos_token="<end>"
)
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(1, 2 * arguments.max_length, (4000,), generator=generator).tolist()
samples = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)
SFTTrainer(
    model=LlamaForCausalLM(config),
    args=arguments,
    train_dataset=Dataset.from_dict({"input_ids": samples}),
    processing_class=tokenizer,
    callbacks=[StepLines()],
).train()
