"""Makes a tiny chat model with its tokenizer and chats for docs/fine-tuning.md, and asks a trained one.

python -m scripts.tiny_chat --model chat --chats chats.jsonl
python -m scripts.tiny_chat --ask answers "what is 3 plus 4?" --adapters adapters
"""

import argparse
import json
from pathlib import Path
from typing import Any

CHATML = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def save_tokenizer(folder: Path, template: str = CHATML) -> Path:
    """Saves a small tokenizer with special tokens for chats and a template ("" for none); returns the folder."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer: Any = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([json.dumps(chat["messages"]) for chat in _chats()], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    if template:
        fast.chat_template = template
    fast.save_pretrained(str(folder))
    return folder


def _chats() -> list[dict[str, Any]]:
    """Returns sums in words, with two questions per chat."""

    def turns(first: int, second: int) -> list[dict[str, str]]:
        question = f"what is {first} plus {second}?"
        answer = f"{_WORDS[first]} plus {_WORDS[second]} is {first + second}"
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    pairs = [(first, second) for first in range(10) for second in range(10)]
    return [{"messages": turns(*pair) + turns(*pairs[(7 * i + 3) % 100])} for i, pair in enumerate(pairs * 3)]


def _make(model: Path, chats: Path) -> None:
    import torch
    import transformers

    save_tokenizer(model)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, eos_token_id=1, pad_token_id=2, bos_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(model)
    chats.write_text("".join(json.dumps(chat) + "\n" for chat in _chats()))


def answer(folder: Path, question: str, adapters: Path | None = None) -> str:
    """Returns the answer of the model in the folder, with these adapters by peft, by greedy decoding."""
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    if adapters is not None:
        import peft

        model = peft.PeftModel.from_pretrained(model, str(adapters))
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**inputs, max_new_tokens=32, do_sample=False, eos_token_id=tokenizer.eos_token_id)
    return tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the folder to make")
    parser.add_argument("--chats", type=Path, help="the file of chats to make")
    parser.add_argument("--ask", nargs=2, metavar=("FOLDER", "QUESTION"), help="a trained folder, and what to ask it")
    parser.add_argument("--adapters", type=Path, help="adapters beside the trained folder")
    options = parser.parse_args()
    if options.ask:
        print(answer(Path(options.ask[0]), options.ask[1], options.adapters))
    elif options.model and options.chats:
        _make(options.model, options.chats)
    else:
        parser.error("give --model and --chats, or --ask")


if __name__ == "__main__":
    main()
