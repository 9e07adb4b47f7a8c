"""save_tensors.py FOLDER: files of tensors, saved in the ways of users of PyTorch.

Every good file holds {"weight": [[0, 1, 2], [3, 4, 5]] / 8, "tied": the same tensor, "mask": [true, false],
"count": 7, "low": [0.5, -2]} where its name says nothing else.
"""

import collections
import io
import os
import pickle
import sys
import zipfile

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3) / 8)
        self.tied = self.weight
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("low", torch.tensor([0.5, -2], dtype=torch.float16))


class Call:
    """Its pickle calls a function when Python reads it."""

    def __init__(self, function, *arguments):
        self.how = (function, arguments)

    def __reduce__(self):
        return self.how


def save(name, value, **more):
    torch.save(value, os.path.join(folder, name), **more)


def replace_pickle(name, source, text):
    """Copies a file with another pickle."""
    with zipfile.ZipFile(os.path.join(folder, source)) as old:
        with zipfile.ZipFile(os.path.join(folder, name), "w") as new:
            for entry in old.namelist():
                new.writestr(entry, text if entry.endswith("data.pkl") else old.read(entry))


folder = sys.argv[1]
net = Net()
state = net.state_dict()
save("state.pt", state)
save("plain.pt", dict(state))
save("protocol4.pt", state, pickle_protocol=4)
save("parameters.pt", {name: state[name] if name in ("mask", "count", "low") else net.weight for name in state})
save("nested.pt", {"epoch": 3, "loss": 0.5, "done": None, "state_dict": state,
                   "optimizer": torch.optim.Adam(net.parameters()).state_dict()})
save("views.pt", {"t": torch.arange(6.0).reshape(2, 3).t(), "row": torch.arange(6.0).reshape(2, 3)[1],
                  "empty": torch.zeros(0, 3)})
save("two.pt", {"model": state, "average": state})
save("list.pt", [net.weight])
save("nothing.pt", {"epoch": 3})
save("old.pt", state, _use_new_zipfile_serialization=False)
save("complex.pt", {"weight": torch.zeros(2, dtype=torch.complex64)})
save("module.pt", net)
torch.jit.script(torch.nn.Linear(3, 2)).save(os.path.join(folder, "script.pt"))
save("calls.pt", {"weight": net.weight, "x": Call(os.system, "touch " + os.path.join(folder, "executed"))})

# Descriptions of tensors that reach behind their elements, each of which PyTorch's C++ reader takes.
for label, offset, size, stride in (("long", 0, (3, 3), (3, 1)), ("offset", 4, (2, 3), (3, 1)),
                                    ("stride", 0, (2, 3), (2**62, 1)), ("negative", 0, (2, 3), (-3, 1)),
                                    ("repeated", 0, (2**40,), (0,)), ("below", -1, (2, 3), (3, 1))):
    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            if isinstance(value, str) and value == "elements":
                return ("storage", torch.FloatStorage, "0", "cpu", 6)
            return None

    class Lie:
        def __reduce__(self, offset=offset, size=size, stride=stride):
            return torch._utils._rebuild_tensor_v2, ("elements", offset, size, stride, False,
                                                     collections.OrderedDict())

    text = io.BytesIO()
    Pickler(text, 2).dump({"weight": Lie()})
    replace_pickle(f"lie-{label}.pt", "state.pt", text.getvalue())
replace_pickle("deep.pt", "state.pt", b"\x80\x02" + b"](" * 500000 + b"e" * 500000 + b".")
