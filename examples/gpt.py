"""Train small GPTs that differ only in their residual structure, and compare their losses on held-out text.

It requires only torch and this package (pip install .), and accepts every structure of docs/structures.md.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from fairseq_resid import connections

LAYERS, DIM, HEADS, CONTEXT, BATCH, DROPOUT, LEARNING_RATE = 4, 128, 4, 64, 8, 0.1, 2e-3
ROOT = Path(__file__).resolve().parents[1]


class Layer(nn.Module):
    """Attention and an MLP, each joined to its shortcut by a site, which contains the dropout and the norms."""

    def __init__(self, attention_site: connections.ResidualConnection, mlp_site: connections.ResidualConnection):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(DIM, DIM) for _ in range(4))
        fc1, fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.mlp = nn.Sequential(fc1, nn.GELU(), fc2)
        self.attention_site, self.mlp_site = attention_site, mlp_site
        attention_site.init_branch(query=self.query, key=self.key, value=self.value, output=self.output)
        mlp_site.init_branch(fc1=fc1, fc2=fc2)  # some structures choose the initial weights of their sublayers

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).flatten(2))

    def forward(self, state: Tensor) -> Tensor:
        state = self.attention_site.enter(state)  # the state of some structures is wider than x
        state = self.attention_site(state, self.attention(self.attention_site.branch_input(state)))
        return self.mlp_site(state, self.mlp(self.mlp_site.branch_input(state)))


class GPT(nn.Module):
    """Maps characters (B, T) to logits (B, T, vocabulary) of the next characters."""

    def __init__(self, residual: str, vocabulary: int):
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, DIM), nn.Embedding(CONTEXT, DIM)
        sites, self.end = connections.build_stack(residual, DIM, LAYERS, DROPOUT, stack="decoder")
        self.layers = nn.Sequential(*(Layer(*pair) for pair in sites))
        self.logits = nn.Linear(DIM, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.positions.weight[: text.size(1)]
        return self.logits(self.end(self.layers(x)))

    def loss(self, windows: Tensor) -> Tensor:
        """Return the mean loss on windows (B, T + 1) of a text, in nats per character."""
        return nn.functional.cross_entropy(self(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train(residual: str, windows: Tensor, vocabulary: int, updates: int) -> GPT:
    """Return a GPT trained on random windows, which are the same for every structure."""
    torch.manual_seed(1)
    batches = torch.randint(len(windows), (updates, BATCH))
    model = GPT(residual, vocabulary)
    if profile := connections.profiler(residual, connections.resolve(residual, {})):  # admin starts with a pass
        with torch.no_grad(), profile(list(connections.sites(model).values())):
            model(windows[batches[0], :-1])
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    for update, batch in enumerate(batches, start=1):
        # Warm-up during the first tenth of the updates, then linear decay.
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(10 * update, updates - update + 1) / updates
        loss = model.loss(windows[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % 100 == 0:
            print(f"\r{residual:16}update {update} of {updates}, loss {loss:.2f}", end="", flush=True)
    return model.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residual", nargs="+", choices=connections.names(), default=["pre_ln", "mhc"], metavar="NAME")
    parser.add_argument("--text", type=Path, metavar="FILE", help="default: the documentation of this repository")
    parser.add_argument("--updates", type=int, metavar="N", default=1500, help="default: 1500")
    args = parser.parse_args()
    files = [args.text] if args.text else [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    vocabulary, data = torch.tensor([ord(each) for each in text]).unique(return_inverse=True)
    split = max(len(data) * 9 // 10, len(data) - 100_000)  # the end of the text is held out
    training, held_out = data[:split].unfold(0, CONTEXT + 1, 1), data[split:].unfold(0, CONTEXT + 1, CONTEXT)
    print(f"{'structure':16}{'parameters':>12}{'nats per character':>20}{'seconds':>10}")
    for name in args.residual:
        start = time.perf_counter()
        model = train(name, training, len(vocabulary), args.updates)
        with torch.no_grad():
            loss, count = model.loss(held_out), sum(map(torch.numel, model.parameters()))
        print(f"\r{name:16}{count:12,}{loss:20.3f}{time.perf_counter() - start:10.0f}")
