"""A stage for the PLE state operations: planned, bound, poisoned, and with a twin for the truth.

A `Stage` holds a binding whose fresh memory is poisoned, so that an element read or written
against the rules shows. `twin()` gives the same tensors on the CPU for the reference.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tolerances import GATE_CONV, GATE_CONV_SHARE

from gramary import ple
from gramary.ops.reference.gate_conv import gate_conv_ref

EPS = 1e-6
POISON = float("nan")


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a test runs: a backend by name, and a device."""

    backend: str
    device: str

    def __str__(self) -> str:
        return f"{self.backend}-{self.device}"


SITES = [
    pytest.param(Site("cpu", "cpu"), id="cpu"),
    pytest.param(
        Site("triton", "cpu"),
        id="interpreter",
        marks=pytest.mark.needs("interpreter"),
    ),
    pytest.param(
        Site("triton", "cuda"),
        id="cuda",
        marks=pytest.mark.gpu,
    ),
]
SMALL = {"streams": 2, "hidden_size": 24, "kernel_size": 4, "dilation": 3}


@dataclasses.dataclass
class Request:
    """One request of a batch: its slot, its first position, and its tokens' inputs."""

    slot: int
    start: int
    residual: torch.Tensor  # [q, S, H]
    key: torch.Tensor  # [q, S, H]
    value: torch.Tensor  # [q, H]

    @property
    def num_tokens(self) -> int:
        return self.value.shape[0]


class Stage:
    """A binding with the memory around it.

    Args:
        site: backend and device.
        num_slots: slots of the pool.
        padding: elements between two slots of the pool, and between two tokens of the
            projection that key and value are slices of.
        in_place: `out` is `residual`, and the residual is added.
        **caps: fields of `ple.Caps` but the device; sizes default to `SMALL`.
    """

    def __init__(
        self, site: Site, *, num_slots: int = 6, padding: int = 0, in_place: bool = False, **caps
    ) -> None:
        fields = {
            "mode": "mixed", "max_tokens": 32, "max_seqs": 4, "max_state_slots": num_slots,
            "max_speculative_tokens": 2, "dtype": torch.float32, **SMALL, **caps,
        }  # fmt: skip
        self.site = site
        self.caps = ple.Caps(device=torch.device(site.device), **fields)
        self.plan = ple.plan(self.caps, backend=site.backend)
        self.padding = padding
        self.in_place = in_place
        caps_ = self.caps
        slot_elements = caps_.state_capacity * caps_.channels + padding
        token_elements = caps_.channels + caps_.hidden_size + padding
        self.pool = self.full(num_slots * slot_elements)
        self.projection = self.full(caps_.max_tokens * token_elements)
        weights = torch.Generator().manual_seed(7)
        draw = lambda *shape: torch.randn(*shape, generator=weights)  # noqa: E731
        residual = self.full(caps_.max_tokens, caps_.streams, caps_.hidden_size)
        self.binding = ple.bind(
            self.plan,
            scratch=torch.full((self.plan.scratch_nbytes,), 0xFF, dtype=torch.uint8).to(
                site.device
            ),
            residual=residual,
            key=self.key_of(self.projection),
            value=self.value_of(self.projection),
            k_norm_weight=self.put(draw(caps_.channels)),
            q_norm_weight=self.put(draw(caps_.channels)),
            u_norm_weight=self.put(draw(caps_.channels)),
            conv_weight=self.put(draw(caps_.channels, caps_.kernel_size)),
            query_start_loc=self.integers(caps_.max_seqs + 1, torch.int32),
            start_positions=self.integers(caps_.max_seqs, torch.int64),
            state_slot_ids=self.integers(caps_.max_seqs, torch.int64),
            num_seqs=self.integers(1, torch.int32),
            num_tokens=self.integers(1, torch.int32),
            conv_state=self.windows_of(self.pool),
            out=residual if in_place else torch.empty_like(residual).fill_(POISON),
            add_residual=in_place,
        )

    def full(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, POISON, dtype=self.caps.dtype, device=self.caps.device)

    def integers(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Stale metadata: what no run may believe."""
        return torch.full((size,), 2**30, dtype=dtype, device=self.caps.device)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.caps.device, self.caps.dtype)

    def windows_of(self, pool: torch.Tensor) -> torch.Tensor:
        caps = self.caps
        slot_elements = caps.state_capacity * caps.channels + self.padding
        shape = (pool.numel() // slot_elements, caps.state_capacity, caps.channels)
        return pool.as_strided(shape, (slot_elements, caps.channels, 1))

    def key_of(self, projection: torch.Tensor) -> torch.Tensor:
        caps = self.caps
        stride = caps.channels + caps.hidden_size + self.padding
        shape = (caps.max_tokens, caps.streams, caps.hidden_size)
        return projection.as_strided(shape, (stride, caps.hidden_size, 1))

    def value_of(self, projection: torch.Tensor) -> torch.Tensor:
        caps = self.caps
        stride = caps.channels + caps.hidden_size + self.padding
        return projection.as_strided(
            (caps.max_tokens, caps.hidden_size), (stride, 1), caps.channels
        )

    def load(self, requests: list[Request], *, num_padding: int = 0) -> None:
        """Puts a batch into the binding; what lies beyond it is poisoned."""
        b = self.binding
        for tensor in (b.residual, b.key, b.value, b.out):
            tensor.fill_(POISON)
        bounds = [0]
        for request in requests:
            tokens = slice(bounds[-1], bounds[-1] + request.num_tokens)
            b.residual[tokens] = self.put(request.residual)
            b.key[tokens] = self.put(request.key)
            b.value[tokens] = self.put(request.value)
            bounds.append(tokens.stop)
        end = bounds[-1] + num_padding
        if b.add_residual:
            b.residual[bounds[-1] : end] = 3.0
        for tensor, values in (
            (b.query_start_loc, bounds),
            (b.start_positions, [request.start for request in requests]),
            (b.state_slot_ids, [request.slot for request in requests]),
            (b.num_seqs, [len(requests)]),
            (b.num_tokens, [end]),
        ):
            tensor.fill_(2**30)
            tensor[: len(values)] = torch.tensor(values, dtype=tensor.dtype)

    def twin(self) -> Twin:
        """The same tensors on the CPU, in memory of their own."""
        b = self.binding
        pool, projection = self.pool.cpu().clone(), self.projection.cpu().clone()
        copies = {
            field.name: getattr(b, field.name).cpu().clone()
            for field in dataclasses.fields(b)
            if isinstance(getattr(b, field.name), torch.Tensor)
        }
        copies["conv_state"] = self.windows_of(pool)
        copies["key"], copies["value"] = self.key_of(projection), self.value_of(projection)
        if self.in_place:
            copies["out"] = copies["residual"]
        return Twin(self, dataclasses.replace(b, spans=(), **copies), pool)

    def run(self) -> torch.Tensor:
        return ple.run(self.binding, eps=EPS)


@dataclasses.dataclass
class Twin:
    """The reference's side of a stage."""

    stage: Stage
    binding: ple.Binding
    pool: torch.Tensor

    def run(self) -> None:
        gate_conv_ref(self.binding, eps=EPS)

    def assert_equal(self) -> None:
        """Outputs and the whole pool, paddings included, equal the stage's."""
        assert_close(self.stage.site, self.stage.binding.out, self.binding.out, "out")
        assert_close(self.stage.site, self.stage.pool, self.pool, "pool")


def rebind(stage: Stage, **changes: object) -> ple.Binding:
    """Binds the stage's tensors again, some of them (or plan or add_residual) exchanged."""
    b = stage.binding
    names = [field.name for field in dataclasses.fields(b) if field.name != "spans"]
    return ple.bind(**{name: getattr(b, name) for name in names} | changes)


def draw_request(caps: ple.Caps, slot: int, start: int, num_tokens: int, seed: int = 0) -> Request:
    """A request whose token at a position has the same inputs however it is cut into runs."""
    generator = torch.Generator().manual_seed(seed)
    # The last 16 numbers of a draw depend on its size: rows of a margin are left over.
    total, by_stream = start + num_tokens + 16, (caps.streams, caps.hidden_size)
    draw = torch.randn(total, 2 * caps.channels + caps.hidden_size, generator=generator)
    draw = draw[start : start + num_tokens].to(caps.dtype)
    residual, key, value = draw.split([caps.channels, caps.channels, caps.hidden_size], dim=1)
    return Request(
        slot, start, residual.unflatten(1, by_stream), key.unflatten(1, by_stream), value
    )


def assert_close(site: Site, got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Bit-equal on the CPU backend; elsewhere within `tolerances.GATE_CONV`, poison unmoved."""
    got, expected = got.cpu(), expected.cpu()
    if site.backend == "cpu":
        assert_same_bits(got, expected, name)
        return
    rtol, atol = GATE_CONV[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True, msg=name)
    differing = (got != expected) & ~(got.isnan() & expected.isnan())
    assert differing.float().mean() <= GATE_CONV_SHARE[expected.dtype], name


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Equal bits, poison included; the first bad coordinate is reported."""
    integer = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    differing = (got.contiguous().view(integer) != expected.contiguous().view(integer)).nonzero()
    if differing.numel():
        at = tuple(differing[0].tolist())
        pytest.fail(f"{name}{list(at)}: expected {expected[at]}, got {got[at]}")
