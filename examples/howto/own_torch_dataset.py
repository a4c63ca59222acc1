"""A torch Dataset: it is read once, with its transforms, and then lives in memory."""

import torch
from torch.utils.data import Dataset

import coterie as ct


class Waves(Dataset):
    """Noisy waves of two kinds, made sample by sample; yours may read files."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        noise = torch.Generator().manual_seed(index)
        time = torch.linspace(0, 6.28, 32)
        wave = torch.sin((1 + index % 2) * time) + 0.5 * torch.randn(32, generator=noise)
        return wave, index % 2


data = ct.from_dataset(Waves(), name="waves")
print(data)
result = ct.Experiment("fedper", data, ct.Dirichlet(clients=6, alpha=0.3), rounds=6, lr=0.1, threads=1).run()
print(f"{result.accuracy().received.mean['last']:.2f}")
