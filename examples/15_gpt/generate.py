"""generate.py FOLDER PROMPT: writes with an exported model, as main.cc does, without Tutti."""

import sys

import torch

CONTEXT = 64


def main(folder, prompt):
    model = torch.jit.load(folder + "/model.pt")
    tokens = list(prompt.encode("ascii"))
    with torch.no_grad():
        for _ in range(100):
            logits = model(tokens=torch.tensor([tokens[-CONTEXT:]]))
            tokens.append(logits[0, -1].argmax().item())
    print(bytes(tokens).decode("ascii"))


if __name__ == "__main__":
    main(*sys.argv[1:])
