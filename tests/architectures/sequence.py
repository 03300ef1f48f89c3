"""Recurrent, one-dimensional and three-dimensional models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import architecture, floats, tokens


@architecture("lstm", tokens())
class LSTMClassifier(nn.Module):
    """Embedding, LSTM, last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.fc1 = nn.Linear(24, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, ids: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embed(ids))
        return self.fc2(F.relu(self.fc1(hidden[-1])))


@architecture("lstm_projected", floats(2, 7, 12))
class ProjectedLSTM(nn.Module):
    """An LSTM with a projection, tagging every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(12, 16)
        self.lstm = nn.LSTM(16, 32, proj_size=8, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(torch.tanh(self.inp(x)))[0])


@architecture("gru_bidirectional", floats(2, 7, 12))
class BiGRU(nn.Module):
    """Two bidirectional layers, pooled over time."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.inp = nn.Linear(12, 24)
        self.gru = nn.GRU(24, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.gru(F.relu(self.inp(x)))
        return self.out(F.relu(self.fc(output.max(dim=1).values)))


@architecture("gru_final_states", floats(2, 7, 12))
class BiGRUStates(nn.Module):
    """Joins the last states of both directions, with an initial state of its own making."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.hidden_size = hidden
        self.gru = nn.GRU(12, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        h0 = torch.zeros(2, x.size(0), self.hidden_size, device=x.device, dtype=x.dtype)
        _, h = self.gru(x, h0)
        return self.out(torch.cat([h[-2], h[-1]], dim=1))


@architecture("rnn_tanh", floats(2, 7, 12))
class PlainRNN(nn.Module):
    """A plain recurrent layer, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(12, 24)
        self.out = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x.transpose(0, 1))
        return self.out(output[-1])


@architecture("lstm_cell", floats(2, 6, 12))
class CellLoop(nn.Module):
    """A cell stepped by hand."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.inp = nn.Linear(12, 16)
        self.cell = nn.LSTMCell(16, hidden)
        self.out = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.hidden)
        c = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            h, c = self.cell(F.relu(self.inp(x[:, t])), (h, c))
        return self.out(h)


@architecture("gru_own_cell", floats(2, 6, 12))
class OwnGRU(nn.Module):
    """A gated cell written with linear layers and chunk."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.x2h = nn.Linear(12, 3 * hidden)
        self.h2h = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            x_r, x_z, x_n = self.x2h(x[:, t]).chunk(3, 1)
            h_r, h_z, h_n = self.h2h(h).chunk(3, 1)
            update = torch.sigmoid(x_z + h_z)
            candidate = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
            h = (1 - update) * candidate + update * h
        return self.out(h)


@architecture("seq2seq_attention", tokens())
class Seq2Seq(nn.Module):
    """An encoder and a decoder with dot-product attention between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.LSTM(16, 24, batch_first=True)
        self.decoder = nn.LSTM(16, 24, batch_first=True)
        self.combine = nn.Linear(48, 32)
        self.out = nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        memory, state = self.encoder(x)
        decoded, _ = self.decoder(x, state)
        weights = torch.bmm(decoded, memory.transpose(1, 2)).softmax(-1)
        return self.out(torch.tanh(self.combine(torch.cat([decoded, torch.bmm(weights, memory)], -1))))


class Chomp(nn.Module):
    """Drops the padding on the right."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.size].contiguous()


class TemporalBlock(nn.Module):
    """Two causal dilated convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        padding = 2 * dilation
        self.net = nn.Sequential(
            nn.Conv1d(inputs, outputs, 3, padding=padding, dilation=dilation),
            Chomp(padding),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv1d(outputs, outputs, 3, padding=padding, dilation=dilation),
            Chomp(padding),
            nn.ReLU(),
        )
        self.downsample = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(self.net(x) + res)


@architecture("tcn", floats(2, 4, 20))
class TCN(nn.Module):
    """Temporal blocks, read at the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(TemporalBlock(4, 16, 1), TemporalBlock(16, 16, 2), TemporalBlock(16, 24, 4))
        self.linear = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.network(x)[:, :, -1])


@architecture("wavenet", floats(2, 4, 20))
class WaveNet(nn.Module):
    """Gated causal convolutions with residual and skip paths."""

    def __init__(self, channels: int = 16, skip: int = 24) -> None:
        super().__init__()
        self.inp = nn.Conv1d(4, channels, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 2, dilation=2**i) for i in range(3))
        self.res = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(channels, skip, 1) for _ in range(3))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, 16, 1), nn.ReLU(), nn.Conv1d(16, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        total: Tensor | int = 0
        for i, (dilated, res, skip) in enumerate(zip(self.dilated, self.res, self.skip, strict=True)):
            filtered, gate = torch.chunk(dilated(F.pad(x, (2**i, 0))), 2, dim=1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            total = total + skip(y)
            x = x + res(y)
        return self.out(total)


@architecture("audio_encoder", floats(2, 200))
class AudioEncoder(nn.Module):
    """wav2vec's features from the raw wave, with a group norm, a projection and a positional convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Conv1d(1, 16, 10, 5, bias=False), nn.GroupNorm(16, 16), nn.GELU()),
                nn.Sequential(nn.Conv1d(16, 16, 3, 2, bias=False), nn.GELU()),
                nn.Sequential(nn.Conv1d(16, 24, 2, 2, bias=False), nn.GELU()),
            ]
        )
        self.norm = nn.LayerNorm(24)
        self.projection = nn.Linear(24, 32)
        self.positional = nn.Conv1d(32, 32, 5, padding=2, groups=4)
        self.head = nn.Linear(32, 10)

    def forward(self, wave: Tensor) -> Tensor:
        x = wave[:, None]
        for layer in self.layers:
            x = layer(x)
        x = self.projection(self.norm(x.transpose(1, 2)))
        x = x + F.gelu(self.positional(x.transpose(1, 2))).transpose(1, 2)
        return self.head(x.mean(dim=1))


class ConformerConv(nn.Module):
    """Pointwise, GLU, depthwise, norm, pointwise."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise = nn.Conv1d(dim, dim, 5, padding=2, groups=dim)
        self.bn = nn.BatchNorm1d(dim)
        self.pointwise2 = nn.Conv1d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.pointwise1(self.norm(x).transpose(1, 2)), dim=1)
        y = self.pointwise2(F.silu(self.bn(self.depthwise(y))))
        return x + y.transpose(1, 2)


@architecture("conformer_conv", floats(2, 9, 12))
def conformer_conv() -> nn.Module:
    """Build conformer convolution modules."""
    return nn.Sequential(nn.Linear(12, 32), ConformerConv(32), ConformerConv(32), nn.Linear(32, 10))


@architecture("conv3d", floats(1, 2, 8, 8, 8))
def conv3d() -> nn.Module:
    """Build a small 3-D net."""
    return nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


@architecture("video_2plus1d", floats(1, 3, 4, 8, 8))
def video_2plus1d() -> nn.Module:
    """Build spatial and temporal convolutions in turn."""
    return nn.Sequential(
        nn.Conv3d(3, 24, (1, 3, 3), padding=(0, 1, 1), bias=False),
        nn.BatchNorm3d(24),
        nn.ReLU(),
        nn.Conv3d(24, 16, (3, 1, 1), padding=(1, 0, 0), bias=False),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


@architecture("crnn", floats(2, 1, 8, 24))
class CRNN(nn.Module):
    """Convolutions, columns as time, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, (4, 3), padding=(0, 1)),
            nn.ReLU(),
        )
        self.rnn = nn.LSTM(24, 16, bidirectional=True)
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).squeeze(2).permute(2, 0, 1)
        return self.fc(self.rnn(x)[0]).log_softmax(2)
