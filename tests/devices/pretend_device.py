"""A device that is not the CPU, in Python alone: true values, autograd, and an error where real devices give one.

Importing this registers "pretend" (two of them, pretend:0 and pretend:1) with torch, for the whole process and for
good: only programs that tests start import it. A tensor on it holds a CPU tensor, which does the arithmetic, so numbers
equal those of the CPU wherever torch takes the same operations. As on a GPU, tensors of two devices do not meet (a CPU
tensor without dimensions may), indices may lie on the CPU, a generator must be of the device, and there is no way into
numpy.
What it cannot do: see that a generator of the device is used for tensors on the CPU; differentiate on
pretend:1 (torch's engine counts one device of this kind); autocast, which changes nothing on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch
import torch.utils._pytree as tree
from torch import Tensor
from torch.utils import backend_registration as registration

NAME, COUNT = "pretend", 2
CPU = torch.device("cpu")

# Operations whose tensors may lie on different devices; of an indexed tensor the indices alone.
_MOVES = {"_to_copy", "copy_", "copy"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# Operations that take no CPU number beside tensors of a device.
_STRICT = {"cat", "stack", "gather", "scatter", "index_select", "embedding", "scatter_add", "index_add"}


class PretendTensor(Tensor):
    """A tensor whose numbers are in `raw`, on the CPU."""

    raw: Tensor

    has_double = True  # some devices have no float64

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> PretendTensor:
        if raw.dtype == torch.float64 and not cls.has_double:
            raise TypeError(f"{device} has no float64")
        made: PretendTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=device,
            layout=raw.layout, requires_grad=False,
        )  # fmt: skip
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:  # by it, the same memory is recognised; abbe's kernels refuse it by the device
        return self.raw.data_ptr()

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def untyped_storage(self) -> Any:  # by it, shared weights are recognised
        return self.raw.untyped_storage()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **({"dtype": self.dtype, "device": self.device} | options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        made: Any = PretendTensor(self.raw.clone(), self.device).requires_grad_(self.requires_grad)
        made.__dict__.update({name: x for name, x in vars(self).items() if name != "raw"})
        memo[id(self)] = made
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.raw!r} on {self.device}"


def _without_lists(index: Any) -> Any:
    """A list would become a tensor below the level at which a device in Python is asked."""
    if isinstance(index, tuple):
        return tuple(torch.tensor(one) if isinstance(one, list) else one for one in index)
    return torch.tensor(index) if isinstance(index, list) else index


def _device(value: Any) -> torch.device:
    asked = torch.device(value)
    if asked.type != NAME:
        return asked
    if (asked.index or 0) >= COUNT:
        raise RuntimeError(f"there are {COUNT} {NAME} devices, not {asked}")
    return torch.device(NAME, asked.index or 0)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check what comes, compute it on the CPU, and give what results to the device."""
    name = func.overloadpacket.__name__
    flat, spec = tree.tree_flatten((args, kwargs))
    given = [x for x in flat if isinstance(x, Tensor)]
    pretend = [x for x in given if isinstance(x, PretendTensor)]
    if name == "copy_":
        target, source = args[:2]
        _raw(target).copy_(_raw(source))
        return target
    wanted = kwargs.get("device")
    device = _device(wanted) if wanted is not None else (pretend[0].device if pretend else CPU)
    if name not in _MOVES:
        _check_devices(name, args, given)
    generators = [x for x in flat if isinstance(x, torch._C.Generator)]
    if device.type == NAME and any(g._cdata not in _generators for g in generators):
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    raw_args, raw_kwargs = tree.tree_unflatten([_plain(x) for x in flat], spec)
    if name == "histc" and not raw_args[0].is_floating_point():  # which GPUs count, and the CPU does not
        out = func(raw_args[0].float(), *raw_args[1:], **raw_kwargs).to(raw_args[0].dtype)
    else:
        out = func(*raw_args, **raw_kwargs)
    if device.type != NAME:
        return out
    same = {id(x.raw): x for x in pretend}  # what was changed in place, or given as out=, comes back itself

    def on_device(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in same or wanted is not None:
            return PretendTensor(x, device)
        given = same[id(x)]
        if given.shape != x.shape:
            raise NotImplementedError(
                f"{func} changes the shape of a tensor, which the pretend device does not know of"
            )
        return given

    return tree.tree_map(on_device, out)


def _check_devices(name: str, args: tuple[Any, ...], given: list[Tensor]) -> None:
    if name in _INDEXED:
        given = [x for x in given if x is args[0] or x.device.type != "cpu" or not _is_among(x, args[1])]
    devices = {x.device for x in given if x.dim() or x.device.type != "cpu" or name in _STRICT}
    if len(devices) > 1:
        places = " and ".join(sorted(map(str, devices)))
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found {places}")


def _is_among(x: Tensor, indices: Sequence[Tensor | None]) -> bool:
    return any(x is index for index in indices)


def _raw(x: Tensor) -> Tensor:
    return x.raw if isinstance(x, PretendTensor) else x


def _plain(x: Any) -> Any:
    if isinstance(x, torch.device):
        return CPU if x.type == NAME else x
    return _raw(x) if isinstance(x, Tensor) else x


# -- Generators -------------------------------------------------------------------------------------------------------

_generators: dict[int, Any] = {}  # by the address that torch hands on; kept, so that no other gets the same one


class PretendGenerator(torch._C.Generator):
    """torch.Generator, which knows the new device: the stream is that of a CPU generator."""

    def __new__(cls, device: Any = CPU) -> Any:
        asked = _device(device)
        if asked.type != NAME:
            return torch._C.Generator(asked)
        made = super().__new__(cls, CPU)
        made.__dict__["place"] = asked
        _generators[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        place: torch.device = self.__dict__["place"]
        return place


# -- Registration -----------------------------------------------------------------------------------------------------


class _Module(registration._DummyBackendModule):
    """What torch asks of torch.pretend."""

    def device_count(self) -> int:
        return COUNT

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    # The random numbers of the device are those of the CPU's default generator: the same seed gives the same numbers.
    def get_rng_state(self, device: Any = NAME) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = NAME) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device: Any = None) -> None:
        pass


def _through_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor and the like fill a tensor below the level at which a device in Python is asked: fill, then move."""

    @wraps(make)
    def made(*args: Any, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != NAME:
            more = {"requires_grad": True} if requires_grad else {}
            return make(*args, **options, **({} if device is None else {"device": device}), **more)
        data, *rest = args
        here = data.to(options.get("dtype")) if isinstance(data, Tensor) else make(data, *rest, **options)
        return here.to(device).requires_grad_(requires_grad)

    return made


def _register() -> Callable[..., Any]:
    registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    torch.Generator = PretendGenerator  # type: ignore[misc, assignment]
    torch.tensor, torch.as_tensor = _through_cpu(torch.tensor), _through_cpu(torch.as_tensor)
    # A parameter that is moved stays the same object, as on a real device, so that shared weights stay shared.
    torch.__future__.set_swap_module_params_on_conversion(True)

    def fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(func, args, kwargs)

    library = torch.library.Library("_", "IMPL")
    library.fallback(fallback, "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # autocast changes nothing there
    # Composed of others these would change the shape of an empty tensor, which a tensor in Python cannot.
    factories = torch.library.Library("aten", "IMPL")
    for name in ("arange", "arange.start", "arange.start_step"):
        packet, _, overload = name.partition(".")
        factories.impl(
            name, partial(fallback, getattr(getattr(torch.ops.aten, packet), overload or "default")), "PrivateUse1"
        )
    fallback.libraries = library, factories  # type: ignore[attr-defined] # registrations end with their libraries
    return fallback


_registered = _register()
