"""A loop with accelerate, which writes its steps by two lines."""

# pyright: basic

import argparse
import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--gradient_accumulation_steps", type=int)
options = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=options.gradient_accumulation_steps)
model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(10**6):
    for _ in range(options.gradient_accumulation_steps):
        with accelerator.accumulate(model):
            tokens = torch.randint(256, (options.batch_size, 33), device=accelerator.device)
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        with Path(os.environ.get("LAYOUT_SEARCH_STEPS", os.devnull)).open("a") as file:
            sequences = options.batch_size * options.gradient_accumulation_steps * accelerator.num_processes
            file.write(json.dumps({"tokens": sequences * 32, "loss": float(loss.detach())}) + "\n")
