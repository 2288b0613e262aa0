"""Scripted GPUs for a real Prometheus, labelled as DCGM exporters of several kinds label them."""

from __future__ import annotations

from worlds.metric_tape import Curve, Tape, constant, until

NAMESPACE = "fleet"
CLOCKS, THROTTLE = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
XID, XIDS = "DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS"
ECC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_FAILED, REMAP_FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILED", "DCGM_FI_DEV_ROW_REMAP_FAILURE"
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
USED_BYTES, FREE_BYTES = f"{USED}_BYTES", f"{FREE}_BYTES"
MIB = 1 << 20
TODAY = {"clocks": THROTTLE, "xid": XIDS, "ecc": ECC, "remap": REMAP_FAILURE, "free": FREE}
RENAMED = {"clocks": CLOCKS, "xid": XID, "ecc": ECC, "remap": REMAP_FAILED, "free": FREE}
WELL = {
    "clocks": constant(0x4),
    "xid": constant(0),
    "ecc": constant(0),
    "remap": constant(0),
    "free": constant(4000),
}


def record_devices(tape: Tape) -> None:
    """Write one GPU, or more, for each case; the replica's name is the case."""
    _gpu(tape, _clashing("gpu-well"), TODAY)
    _gpu(tape, _clashing("gpu-renamed"), RENAMED, clocks=constant(0x40), xid=came(79), remap=constant(1))
    _gpu(tape, _honoured("gpu-honoured"), TODAY, xid=came(48))
    _gpu(tape, _of_old("gpu-of-old"), TODAY, ecc=constant(2))
    _gpu(tape, _clashing("gpu-was-hot"), TODAY, clocks=lambda t: 0x44 if -200 < t < -140 else 0x1)
    _gpu(tape, _clashing("gpu-was-hot-long-ago"), TODAY, clocks=lambda t: 0x40 if t < -400 else 0x104)
    _gpu(tape, _clashing("gpu-two-reasons"), TODAY, clocks=lambda t: 0x8 if t < -60 else 0x20)
    _gpu(tape, _clashing("gpu-capped"), TODAY, clocks=constant(0x116))
    _gpu(tape, _clashing("gpu-silent"), TODAY, **{name: until(each, -180) for name, each in WELL.items()})
    _gpu(tape, _clashing("gpu-default-set"), {"xid": XIDS, "remap": REMAP_FAILURE})
    _gpu(tape, _clashing("gpu-blank"), TODAY, clocks=constant(2.0**63), ecc=constant(float(0x7FFFFFF0)))
    for number in ("0", "1"):
        _gpu(tape, _clashing("gpu-pair", gpu=number), TODAY, xid=came(79 if number == "1" else 31))
    for exporter, alive in (("dcgm-before", lambda t: t < -60), ("dcgm-after", lambda t: t >= -60)):
        _gpu(tape, _clashing("gpu-moved") | {"pod": exporter}, TODAY, **_while(alive))
    for replica in ("a", "b"):
        curve = came(79) if replica == "b" else constant(0)
        _gpu(tape, _clashing("gpu-twice") | {"prometheus_replica": replica}, TODAY, xid=curve)
    _record_memory(tape)
    _gpu(tape, _clashing("gpu-old-xid"), {"xid": XIDS}, xid=constant(79))
    _gpu(tape, _clashing("gpu-xid-of-its-user"), {"xid": XIDS}, xid=came(79, -500))
    _gpu(tape, _clashing("gpu-xid-again"), {"xid": XIDS}, xid=lambda t: 79 if t < -200 else 48)
    _gpu(tape, _clashing("gpu-xid-unseen"), {"xid": XIDS}, xid=lambda t: 79 if t > -120 else None)
    for user, alive in (("gpu-xid-before", lambda t: t < -400), ("gpu-xid-after", lambda t: t >= -400)):
        device = _clashing(user) | {"UUID": "GPU-healed"}
        _gpu(tape, device, {"xid": XIDS}, xid=lambda t, alive=alive: came(79, -500)(t) if alive(t) else None)
    for user, alive in (("gpu-xid-killed", lambda t: t < -120), ("gpu-xid-next", lambda t: t >= -120)):
        device = _clashing(user) | {"UUID": "GPU-broken"}
        _gpu(tape, device, {"xid": XIDS}, xid=lambda t, alive=alive: came(79, -150)(t) if alive(t) else None)
    _gpu(tape, {"pod": "dcgm-unused", "namespace": "monitoring", "gpu": "0"}, TODAY, xid=constant(79))
    for job, curves in (("dcgm", {}), ("tenant/app", {"xid": came(79), "free": constant(80)})):
        _gpu(tape, _clashing("gpu-forged") | {"job": job}, TODAY, **curves)
    _record_other_nodes(tape)


def _record_other_nodes(tape: Tape) -> None:
    """Write a GPU that its node's exporter shows as well, and one that is elsewhere shows as ill."""
    others = {"Hostname": {"Hostname": "gpu-9"}, "target": {"node": "gpu-9"}, "nobody": {"Hostname": ""}}
    for case, other in others.items():
        _gpu(tape, _clashing(f"gpu-elsewhere-{case}"), TODAY)
        _gpu(tape, _clashing(f"gpu-elsewhere-{case}") | other, TODAY, xid=came(79), free=constant(80))


def _record_memory(tape: Tape) -> None:
    """Write the memory of one GPU of 80 GiB for each case, in MiB but for the new names."""
    _gpu(tape, _clashing("gpu-was-full"), TODAY, free=lambda t: 90 if -200 < t < -140 else 4000)
    _gpu(tape, _clashing("gpu-was-full-long-ago"), TODAY, free=lambda t: 90 if t < -400 else 4000)
    for replica in ("a", "b"):
        curve = constant(80 if replica == "b" else 4000)
        _gpu(tape, _clashing("gpu-full-twice") | {"prometheus_replica": replica}, TODAY, free=curve)
    peak = lambda t: 77_824.0 if -200 < t < -140 else 70_000.0  # noqa: E731
    rest = lambda t: 81_920.0 - peak(t)  # noqa: E731
    blank = constant(float(0x7FFFFFF0))
    _memory(tape, "memory-steady", constant(73_728.0), constant(8_192.0))
    _memory(tape, "memory-peaked", peak, rest)
    _memory(tape, "memory-peaked-long-ago", lambda t: peak(t + 400), lambda t: rest(t + 400))
    _memory(tape, "memory-silent", until(constant(73_728.0), -180), until(constant(8_192.0), -180))
    _memory(tape, "memory-blank", blank, constant(8_192.0))
    _memory(tape, "memory-zero", constant(0.0), constant(0.0))
    _memory(tape, "memory-half-reported", constant(73_728.0), None)
    used, free = constant(73_728.0 * MIB), constant(8_192.0 * MIB)
    _gpu(tape, _clashing("memory-in-bytes"), {"used": USED_BYTES, "free": FREE_BYTES}, used=used, free=free)
    for number, share in (("0", 0.5), ("1", 0.95)):
        device = {"used": constant(share * 81_920), "free": constant((1 - share) * 81_920)}
        _gpu(tape, _clashing("memory-pair", gpu=number), {"used": USED, "free": FREE}, **device)
    for replica, share in (("a", 0.9), ("b", 0.91)):
        device = {"used": constant(share * 81_920), "free": constant((1 - share) * 81_920)}
        labels = _clashing("memory-twice") | {"prometheus_replica": replica}
        _gpu(tape, labels, {"used": USED, "free": FREE}, **device)


def _memory(tape: Tape, pod: str, used: Curve, free: Curve | None) -> None:
    names = {"used": USED} if free is None else {"used": USED, "free": FREE}
    _gpu(tape, _clashing(pod), names, used=used, **({} if free is None else {"free": free}))


def _gpu(tape: Tape, labels: dict[str, str], names: dict[str, str], **curves: Curve) -> None:
    for key, name in names.items():
        tape.add(name, labels, (WELL | curves)[key])


def came(xid: int, at: float = -120) -> Curve:
    """Return the last XID of a device that had none until some seconds before the end."""
    return lambda t: xid if t >= at else 0


def _while(alive: Curve) -> dict[str, Curve]:
    return {name: (lambda t, each=each: each(t) if alive(t) else None) for name, each in WELL.items()}


def _clashing(pod: str, gpu: str = "0") -> dict[str, str]:
    """Scraped as prometheus-operator does: the exporter's own labels stand in the way."""
    own = {"pod": "dcgm-x7", "namespace": "monitoring", "instance": "10.2.0.1:9400", "job": "dcgm"}
    return own | {"exported_pod": pod, "exported_namespace": NAMESPACE} | _device(pod, gpu)


def _honoured(pod: str) -> dict[str, str]:
    """Scraped with `honorLabels`."""
    return {"pod": pod, "namespace": NAMESPACE, "job": "dcgm"} | _device(pod, "0")


def _of_old(pod: str) -> dict[str, str]:
    """By an exporter that uses the labels of its first versions."""
    own = {"pod": "dcgm-x7", "namespace": "monitoring", "job": "dcgm"}
    return own | {"pod_name": pod, "pod_namespace": NAMESPACE} | _device(pod, "0")


def _device(pod: str, gpu: str) -> dict[str, str]:
    return {"gpu": gpu, "UUID": f"GPU-{pod}-{gpu}", "Hostname": "gpu-7", "modelName": "NVIDIA H100"}
