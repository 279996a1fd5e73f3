"""Pci: where devices sit in the PCIe tree, and what the bridges on the way do to their traffic."""

from __future__ import annotations

import re
from enum import StrEnum

from dcp_gds.preflight.host import Host

__all__ = ["Distance", "distance", "largest_region_bytes", "pci_path", "redirects", "socket_of"]

# A host bridge ("pci0000:80") or a function ("0000:81:00.0") in a path of /sys.
STEP = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}|[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# PCI Express Base Specification 4.0, 7.7.8: the capability, and its control register's bits by
# which a switch sends peers' requests and completions up instead of across.
CAPABILITIES_AT, CAPABILITIES_END = 0x100, 0x1000
ACS, ACS_CONTROL = 0x000D, 6
ACS_REDIRECTS = 0x4 | 0x8 | 0x10
CAPABILITIES_MAX = 64


class Distance(StrEnum):
    """How far two devices are from each other, the nearest first."""

    SWITCH = "same PCIe switch"
    BRIDGE = "same host bridge"
    SOCKET = "same socket"
    ACROSS = "across sockets"
    UNKNOWN = "unknown"


def pci_path(host: Host, place: str) -> tuple[str, ...]:
    """Return the host bridge, the ports and the device that a path of /sys leads through."""
    return tuple(part for part in host.real(place).split("/") if STEP.fullmatch(part))


def distance(host: Host, one: tuple[str, ...], other: tuple[str, ...]) -> Distance:
    """Compare two devices by their `pci_path`."""
    if not one or not other:
        return Distance.UNKNOWN
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    # A host bridge and a root port, and then something that both are below.
    if common > 1:
        return Distance.SWITCH
    if common == 1:
        return Distance.BRIDGE
    sockets = socket_of(host, one[-1]), socket_of(host, other[-1])
    if None in sockets:
        return Distance.UNKNOWN
    return Distance.SOCKET if sockets[0] == sockets[1] else Distance.ACROSS


def socket_of(host: Host, address: str) -> int | None:
    """Return the NUMA node of a function; None where the firmware does not tell."""
    text = host.get(f"sys/bus/pci/devices/{address}/numa_node") or ""
    return int(text) if text.isdigit() else None


def redirects(host: Host, address: str) -> bool | None:
    """Tell whether a bridge sends peer traffic up (ACS); None if its registers cannot be read.

    The kernel shows users other than root the first 64 bytes only.
    """
    content = host.read_bytes(f"sys/bus/pci/devices/{address}/config")
    if len(content) < CAPABILITIES_AT + 4:
        return None
    at = CAPABILITIES_AT
    for _ in range(CAPABILITIES_MAX):
        header = int.from_bytes(content[at : at + 4], "little")
        if header & 0xFFFF == ACS:
            control = int.from_bytes(content[at + ACS_CONTROL : at + ACS_CONTROL + 2], "little")
            return bool(control & ACS_REDIRECTS)
        at = header >> 20
        if not CAPABILITIES_AT < at <= min(len(content), CAPABILITIES_END) - 8:
            break
    return False


def largest_region_bytes(host: Host, address: str) -> int:
    """Return the length of a function's largest memory region, a GPU's BAR1; 0 if none."""
    lengths = [0]
    for line in (host.get(f"sys/bus/pci/devices/{address}/resource") or "").splitlines():
        words = line.split()
        try:
            start, end = int(words[0], 16), int(words[1], 16)
        except (ValueError, LookupError):
            continue
        if end > start:
            lengths.append(end - start + 1)
    return max(lengths)
