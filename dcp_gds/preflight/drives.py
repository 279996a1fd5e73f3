"""Drives: findings on the block devices beneath a path: what they are and how they are set."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dcp_gds.preflight.blockdevice import BlockDevice, controllers, devices_below
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host, UnreadableError
from dcp_gds.preflight.mounts import MountLine, find_mount
from dcp_gds.preflight.pci import pci_path, socket_of

__all__ = ["check_drives", "check_health", "controllers_below"]

# NVIDIA's list: plain NVMe, its partitions, and md RAID-0; not the device mapper.
FITTING = frozenset({"nvme", "partition", "raid0"})
# Schedulers that sort requests cost time and gain nothing where nothing seeks.
SCHEDULERS = frozenset({"none", "mq-deadline"})
# The vendor's own figure for "worn": it warrants the drive up to 100%.
WEAR_PERCENT_MAX = 100


def check_drives(host: Host, path: str, facts: Facts) -> Iterator[Finding]:
    """What lies between the filesystem and the drives, and how each NVMe drive is set."""
    mount = find_mount(host, path, mount_id=facts.seen.get("mount_id"))
    devices = devices_below(host, mount)
    if not devices:
        raise UnreadableError(f"/sys/class/block: no device for {mount.device} ({mount.source})")
    yield _stack(mount, devices)
    for device in devices:
        if device.kind == "nvme":
            yield from _link(host, device)
            yield from _queue(host, device)


def controllers_below(host: Host, path: str, facts: Facts) -> list[str]:
    """Return the controllers of the local NVMe drives under a path; none if it cannot be known."""
    try:
        mount = find_mount(host, path, mount_id=facts.seen.get("mount_id"))
    except UnreadableError:
        return []
    drives = [each.name for each in devices_below(host, mount) if each.kind == "nvme"]
    return list(dict.fromkeys(name for drive in drives for name in controllers(host, drive)))


def check_health(smart: Facts) -> Iterator[Finding]:
    """Wear, spare and warnings of the drives, where their health log can be read."""
    if smart.failure:
        raise UnreadableError(f"health of the drives: a process that reads it {smart.failure}")
    for drive, log in smart.seen.items():
        source = f"health log of {drive}"
        if "error" in log:
            observed = f"{source} cannot be read: {log['error']}"
            yield Finding("drive-health", Status.SKIP, observed, source=source)
            continue
        observed = f"{drive}: {log['used']}% of its endurance used, {log['spare']}% spare"
        if log["warning"] or log["spare"] < log["threshold"] or log["used"] >= WEAR_PERCENT_MAX:
            observed += f", critical warning {log['warning']:#x}"
            expected = f"below {WEAR_PERCENT_MAX}%, spare above {log['threshold']}%, no warning"
            remedy = f"replace the drive soon: `smartctl -a /dev/{drive}`"
            yield Finding("drive-health", Status.WARN, observed, expected, remedy, source)
        else:
            yield Finding("drive-health", Status.OK, observed, source=source)


def _stack(mount: MountLine, devices: list[BlockDevice]) -> Finding:
    """Whether every device from the filesystem down is one that GDS can write through."""
    shown = ", ".join(f"{device.name} ({device.kind})" for device in devices)
    wrong = next((each for each in devices if each.kind not in FITTING), None)
    if wrong is None:
        return Finding("drives", Status.OK, shown, source="/sys/class/block")
    observed = f"{wrong.name} is {wrong.kind}: {shown}"
    if wrong.kind == "other":
        observed = f"{wrong.name} is no NVMe drive: {shown}"
    remedy = (
        "for GDS put ext4 or xfs on local NVMe drives, a partition of one, or md RAID-0 of them"
    )
    return Finding("drives", Status.WARN, observed, "local NVMe", remedy, "/sys/class/block")


def _link(host: Host, device: BlockDevice) -> Iterator[Finding]:
    """Whether an NVMe drive's PCIe link runs as fast as it can."""
    for controller in controllers(host, device.name):
        place = f"sys/class/nvme/{controller}/device"
        for what in ("speed", "width"):
            now, most = (host.get(f"{place}/{side}_link_{what}") for side in ("current", "max"))
            if now is not None and most is not None and now != most:
                observed = f"PCIe link {what} of {device.name} is {now}"
                remedy = f"reseat the drive or look at its slot: `lspci -vv` ({controller})"
                yield Finding("drive-link", Status.WARN, observed, most, remedy, f"/{place}")


def _queue(host: Host, device: BlockDevice) -> Iterator[Finding]:
    """A drive's model, socket, sectors, cache, queue limits and scheduler."""
    queue = f"sys/class/block/{device.name}/queue"
    controller = next(iter(controllers(host, device.name)), "")
    address = pci_path(host, f"sys/class/nvme/{controller}/device")
    told = {
        "model": host.get(f"sys/class/nvme/{controller}/model"),
        "NUMA node": socket_of(host, address[-1]) if address else None,
        "sectors of": host.get(f"{queue}/logical_block_size"),
        "cache": host.get(f"{queue}/write_cache"),
        "largest request in KiB": host.get(f"{queue}/max_sectors_kb"),
        "requests queued": host.get(f"{queue}/nr_requests"),
    }
    observed = ", ".join(f"{what} {value}" for what, value in told.items() if value is not None)
    chosen = re.search(r"\[(\S+)\]", host.get(f"{queue}/scheduler") or "")
    if chosen and chosen[1] not in SCHEDULERS:
        remedy = f"echo none > /{queue}/scheduler, and a udev rule that keeps it"
        what = f"{device.name} has the I/O scheduler {chosen[1]}"
        yield Finding("drive-queue", Status.WARN, what, "none", remedy, f"/{queue}/scheduler")
    elif observed:
        observed = f"{device.name}: {observed}{f', scheduler {chosen[1]}' if chosen else ''}"
        yield Finding("drive-queue", Status.OK, observed, source=f"/{queue}")
