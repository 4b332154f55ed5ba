"""Small nets for the tests of files for the CUDA provider."""

import torch
from torch import nn


class VisionTransformer(nn.Module):
    """Patches, a class token, one block, a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.block = encoder()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.block(torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1))[:, 0])


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
