"""Small torch models, one for each family of architectures that the transformer models do not cover."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Down, up and across: strided and transposed convolutions, interpolation to a computed size."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.last = nn.Conv2d(5 * width, 2, 1)

    def forward(self, x):
        a = F.silu(self.first(x))
        b = F.silu(self.down(a))
        c = F.silu(self.norm(self.bottom(b)))
        up = F.interpolate(self.up(c), size=b.shape[-2:], mode="nearest")
        joined = torch.cat([up, b], 1)
        wide = F.interpolate(joined, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([wide, a], 1))


class InvertedResidual(nn.Module):
    def __init__(self, width: int, stride: int):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU6())
        self.depth = nn.Conv2d(4 * width, 4 * width, 3, stride, 1, groups=4 * width, bias=False)
        self.squeeze = nn.Sequential(nn.Conv2d(4 * width, width, 1), nn.Hardsigmoid())
        self.spread = nn.Conv2d(width, 4 * width, 1)
        self.project = nn.Conv2d(4 * width, width, 1)
        self.stride = stride

    def forward(self, x):
        y = F.hardswish(self.depth(self.expand(x)))
        y = y * torch.sigmoid(self.spread(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        y = self.project(y)
        return x + y if self.stride == 1 else y


class MobileNet(nn.Module):
    """Depthwise convolutions, squeeze and excitation."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.Sequential(InvertedResidual(width, 1), InvertedResidual(width, 2), InvertedResidual(width, 1))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(F.hardswish(self.stem(x))).mean((2, 3)))


class LstmTagger(nn.Module):
    """A tag for each token, from both directions."""

    def __init__(self, words: int = 50, width: int = 16, tags: int = 7):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(48, tags)

    def forward(self, ids):
        return self.tags(self.lstm(self.words(ids))[0]).log_softmax(-1)


class MixerLayer(nn.Module):
    def __init__(self, places: int, width: int):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        x = x + self.across(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.after(x))


class MlpMixer(nn.Module):
    """Patches of a fixed image size, any batch."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.Sequential(MixerLayer(16, width), MixerLayer(16, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class DetectionHead(nn.Module):
    """Boxes from anchors over any feature map, the best scores first."""

    def __init__(self, width: int = 16, classes: int = 5):
        super().__init__()
        self.classes = classes
        self.scores, self.boxes = nn.Conv2d(width, classes, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        batch, _, height, width = x.shape
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        centres = torch.stack([columns, rows], -1).reshape(1, -1, 2).to(x.dtype) + 0.5
        scores = self.scores(x).sigmoid().permute(0, 2, 3, 1).reshape(batch, -1, self.classes)
        offsets = self.boxes(x).permute(0, 2, 3, 1).reshape(batch, -1, 4)
        middle, size = centres + offsets[..., :2].tanh(), offsets[..., 2:].clamp(max=3).exp()
        boxes = torch.cat([middle - size / 2, middle + size / 2], -1)
        best, label = scores.max(-1)
        top, order = best.topk(4, dim=1)
        picked = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        return top, label.gather(1, order), picked


class AudioNet(nn.Module):
    """Dilated one-dimensional convolutions over a waveform, statistics over time."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 10, stride=5)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(2 * width, 8)

    def forward(self, wave):
        x = self.norm(self.stem(wave[:, None]))
        for layer in self.layers:
            x = x + F.glu(layer(x), 1)
        return self.head(torch.cat([x.mean(-1), x.std(-1, unbiased=False)], 1))


class GraphNet(nn.Module):
    """Messages along edges, summed at their targets; any number of nodes and edges."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, nodes, edges):
        source, target = edges[0], edges[1]
        for _ in range(2):
            sent = torch.relu(self.message(torch.cat([nodes[source], nodes[target]], 1)))
            heard = torch.zeros_like(nodes).index_add(0, target, sent)
            nodes = nodes + torch.tanh(self.update(torch.cat([nodes, heard], 1)))
        weight = torch.zeros(nodes.shape[0]).scatter_add(0, target, torch.ones_like(target, dtype=torch.float32))
        return self.head(nodes) / weight.clamp(min=1)[:, None]
