"""Statesize: how many bytes a model's state has, weights and optimizer together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dcp_gds.errors import ConfigError

__all__ = ["DTYPES", "OPTIMIZERS", "bytes_per_parameter"]

FP32_BYTES = 4
DTYPES: Mapping[str, int] = MappingProxyType(
    {
        "fp32": 4,
        "float32": 4,
        "fp16": 2,
        "float16": 2,
        "bf16": 2,
        "bfloat16": 2,
        "fp8": 1,
        "float8": 1,
        "fp64": 8,
        "float64": 8,
    }
)
# Bytes of state that the optimizer keeps for each parameter, in fp32 as torch.optim and Megatron
# keep them: exp_avg and exp_avg_sq of Adam, a momentum, a sum of squares. Adafactor keeps rows and
# columns of a matrix only (Shazeer and Stern, 2018): next to nothing. The 8-bit Adam of Dettmers et
# al., 2021, keeps a byte for each of both.
OPTIMIZERS: Mapping[str, int] = MappingProxyType(
    {
        "none": 0,
        "sgd": 0,
        "momentum": 4,
        "lion": 4,
        "adagrad": 4,
        "rmsprop": 4,
        "adafactor": 0,
        "adam8bit": 2,
        "adam": 8,
        "adamw": 8,
        "lamb": 8,
    }
)


def bytes_per_parameter(dtype: str, optimizer: str, *, master: bool | None = None) -> int:
    """Return the bytes that a checkpoint holds for each parameter.

    Rajbhandari et al., "ZeRO", 2020, section 3.1: with mixed precision and Adam, weights in 2
    bytes, a master copy in 4, and two moments in 4 each. Gradients are not saved. bf16, adamw: 14.

    Parameters
    ----------
    dtype, optimizer
        Names in `DTYPES` and `OPTIMIZERS`, in any case.
    master
        Whether there is a master copy in fp32; None for "if an optimizer works on less than that".

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    weights = _known("dtype", dtype, DTYPES)
    moments = _known("optimizer", optimizer, OPTIMIZERS)
    if master is None:
        master = weights < FP32_BYTES and optimizer.lower() != "none"
    return weights + moments + FP32_BYTES * master


def _known(name: str, value: str, table: Mapping[str, int]) -> int:
    """The entry of a table."""
    if value.lower() not in table:
        raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(table)}")
    return table[value.lower()]
