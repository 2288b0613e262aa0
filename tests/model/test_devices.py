"""What nvidia-smi prints, as readings: faults, what is well, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import NO_SERIES, NOT_A_NUMBER, NOW, SOURCE_UNAVAILABLE
from kvmedic.model.devices import (
    BY_DEFAULT,
    CLOCK_FIELDS,
    FILLED,
    MOST_LINES,
    NEEDED,
    NVIDIA_SMI_ERRORS,
    OTHER_FIELDS,
    Device,
    NvidiaSmiError,
    Vital,
    Vitals,
    fill_vitals,
    may_fill,
    nvidia_smi_query,
    parse_devices,
)
from kvmedic.model.evidence import Measured, Unsupported
from worlds.vitals_builder import NODE, a_device

UUID = "GPU-5a1f0c9e-30ba-9f6e-0000-0123456789ab"
OTHER = "GPU-6b2f0c9e-30ba-9f6e-0000-0123456789ab"
FAULTS, WELL, UNKNOWN = "a fault", "well", "unknown"


def line(
    *, index: str = "0", uuid: str = UUID, mig: str = "Disabled", ecc: str = "0", clocks: str = "0x4"
) -> str:
    """Return one line as it is printed without a header and units."""
    return f"{index}, {uuid}, {mig}, {ecc}, {clocks}\n"


def read_gpus(text: str, exit_code: int = 0) -> tuple[Device, ...]:
    answer = parse_devices(exit_code, text, NOW)
    assert isinstance(answer, Measured)
    return answer.value


def verdict(devices: tuple[Device, ...]) -> str:
    """Return what a look would make of some devices."""
    signs = (Vital.CLOCK_REASONS, Vital.UNCORRECTABLE_ERRORS, Vital.DRIVER_FAULT)
    if any(device.value(vital) for device in devices for vital in signs):
        return FAULTS
    return UNKNOWN if any(device.list_unknown() for device in devices) else WELL


def test_the_query_changes_nothing_and_asks_for_the_columns_that_are_read() -> None:
    program, fields, form = nvidia_smi_query(CLOCK_FIELDS[0])

    assert (program, form) == ("nvidia-smi", "--format=csv,noheader,nounits")
    assert fields == f"--query-gpu={','.join(OTHER_FIELDS)},clocks_event_reasons.active"
    assert line().count(",") == fields.count(",")


def test_a_gpu_that_is_well_is_known_as_such_although_no_xid_is_reported() -> None:
    (device,) = read_gpus(line())

    assert (device.name, device.uuid, device.is_partitioned) == ("GPU 0", UUID, False)
    assert device.reading(Vital.CLOCK_REASONS) == Measured(0.0, NOW)
    assert device.reading(Vital.UNCORRECTABLE_ERRORS) == Measured(0.0, NOW)
    assert device.reading(Vital.LAST_XID) == Unsupported()
    assert device.list_unknown() == ()
    assert device.asked == frozenset(FILLED)


@pytest.mark.parametrize(
    ("mask", "bits"),
    [
        ("0x0000000000000000", 0),
        ("0x0000000000000001", 0),
        ("0x0000000000000004", 0),
        ("0x0000000000000008", 0x08),
        ("0x0000000000000020", 0x20),
        ("0x0000000000000040", 0x40),
        ("0x0000000000000080", 0x80),
        ("0x0000000000000116", 0),
        ("0x00000000000001ff", 0xE8),
        ("0x8000000000000044", 0x40),
    ],
)
def test_four_clock_reasons_are_faults_and_all_others_are_left_out(mask: str, bits: int) -> None:
    (device,) = read_gpus(line(clocks=mask))

    assert device.value(Vital.CLOCK_REASONS) == bits


@pytest.mark.parametrize(
    "word", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "", "-1", "nan"]
)
@pytest.mark.parametrize(
    ("cell", "vital"), [("ecc", Vital.UNCORRECTABLE_ERRORS), ("clocks", Vital.CLOCK_REASONS)]
)
def test_a_word_in_place_of_a_number_is_unknown(cell: str, vital: Vital, word: str) -> None:
    (device,) = read_gpus(line(**{cell: word}))

    assert device.reading(vital) == NOT_A_NUMBER
    assert device.list_unknown() == (vital,)


@pytest.mark.parametrize(
    "number", ["0x", "0x00000000000000004f", "4", "0x4 Active", "1.0", "1e3", "٣", "9" * 19]
)
def test_a_number_that_is_not_one_of_the_drivers_is_unknown(number: str) -> None:
    cell = "ecc" if number in {"1.0", "1e3", "٣", "9" * 19} else "clocks"

    assert verdict(read_gpus(line(**{cell: number}))) == UNKNOWN


@pytest.mark.parametrize(("errors", "found"), [("0", WELL), ("1", FAULTS), ("4096", FAULTS)])
def test_one_uncorrectable_error_is_a_fault(errors: str, found: str) -> None:
    assert verdict(read_gpus(line(ecc=errors))) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (line(ecc="[GPU is lost]", clocks="[GPU is lost]", mig="[GPU is lost]"), 15),
        (line(ecc="[GPU requires reset]", clocks="[GPU requires reset]"), 16),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system\n", 15),
        ("GPU 0000:3B:00.0 has fallen off the bus\n", 15),
        (f"{line()}Unable to determine the device handle for GPU1: GPU is lost.\n", 15),
    ],
    ids=["lost", "to be reset", "a line of its own", "fallen off the bus", "beside one that is well"],
)
def test_a_gpu_that_cannot_be_used_is_a_fault_by_the_drivers_own_code(text: str, code: int) -> None:
    faults = [device.value(Vital.DRIVER_FAULT) for device in read_gpus(text)]

    assert max(fault or 0 for fault in faults) == code


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (1, NvidiaSmiError.FAILED),
        (2, NvidiaSmiError.UNKNOWN_FIELD),
        (3, NvidiaSmiError.FAILED),
        (4, NvidiaSmiError.FAILED),
        (6, NvidiaSmiError.FAILED),
        (8, FAULTS),
        (9, NvidiaSmiError.FAILED),
        (10, NvidiaSmiError.FAILED),
        (12, NvidiaSmiError.FAILED),
        (13, NvidiaSmiError.FAILED),
        (14, NvidiaSmiError.FAILED),
        (15, FAULTS),
        (16, FAULTS),
        (137, NvidiaSmiError.FAILED),
        (255, NvidiaSmiError.FAILED),
    ],
)
@pytest.mark.parametrize("text", ["", "Failed to initialize NVML: Unknown Error\n", line()])
def test_an_exit_code_is_a_fault_only_where_it_says_that_a_device_is_unusable(
    code: int, found: str | NvidiaSmiError, text: str
) -> None:
    answer = parse_devices(code, text, NOW)

    if found == FAULTS:
        assert isinstance(answer, Measured)
        assert verdict(answer.value) == FAULTS
    else:
        assert answer is found


def test_a_gpu_that_is_named_as_lost_is_not_counted_twice_by_the_exit_code() -> None:
    devices = read_gpus(line() + line(index="1", uuid=OTHER, ecc="[GPU is lost]"), exit_code=15)

    assert [device.value(Vital.DRIVER_FAULT) for device in devices] == [0, 15]


def test_a_lost_gpu_is_reported_also_where_the_command_ends_otherwise() -> None:
    assert verdict(read_gpus(line(ecc="[GPU is lost]"), exit_code=255)) == FAULTS


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_silence_is_no_health(text: str) -> None:
    assert parse_devices(0, text, NOW) is NvidiaSmiError.NO_DEVICE


@pytest.mark.parametrize(
    "noise",
    [
        "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n",
        "Unable to determine the device handle for GPU1: 0000:81:00.0: Unknown Error\n",
        "0, GPU-1, Disabled, 0\n",
        "0, GPU-1, Disabled, 0, 0x0, 0x0\n",
        "index, uuid, mig.mode.current\n",
        "\x00\ufffd\n",
    ],
)
def test_a_line_that_cannot_be_read_makes_a_gpu_of_which_nothing_is_known(noise: str) -> None:
    devices = read_gpus(line() + noise)

    assert verdict(devices) == UNKNOWN
    assert devices[1].list_unknown() == BY_DEFAULT


def test_an_answer_of_more_lines_than_a_node_has_gpus_is_not_read() -> None:
    assert len(read_gpus(line() * MOST_LINES)) == MOST_LINES
    assert len(read_gpus(line() * MOST_LINES + "\n" * MOST_LINES)) == MOST_LINES
    assert parse_devices(0, line() * (MOST_LINES + 1), NOW) is NvidiaSmiError.TOO_LONG


def test_nothing_of_what_is_printed_is_kept_but_numbers() -> None:
    secret = "prompt: how do I bake bread"

    devices = read_gpus(f"{line(index=secret, uuid=secret, mig=secret, ecc=secret, clocks=secret)}{secret}\n")

    assert secret not in repr(devices)


def test_a_gpu_that_is_shared_out_is_reported_as_one() -> None:
    (device,) = read_gpus(line(mig="Enabled"))

    assert device.is_partitioned


KNOWN = Measured((replace(a_device("GPU 3"), uuid=UUID),), NOW)
XID_ALONE = Device("GPU 3", {Vital.LAST_XID: Measured(0.0, NOW)}, UUID)


@pytest.mark.parametrize(
    ("devices", "asked"),
    [
        (NO_SERIES, True),
        (Measured((), NOW), True),
        (Measured((XID_ALONE,), NOW), True),
        (KNOWN, False),
        (SOURCE_UNAVAILABLE, False),
        (Unsupported(), False),
        (Measured((Device("GPU 3", dict.fromkeys(NEEDED, SOURCE_UNAVAILABLE), UUID),), NOW), False),
        (Measured((a_device(last_xid=NO_SERIES),), NOW), False),
    ],
    ids=[
        "no series",
        "no device",
        "XIDs alone",
        "all is known",
        "no source",
        "nobody asked",
        "a source that answers in part",
        "only XIDs are missing, which it never reports",
    ],
)
def test_it_is_asked_only_for_what_no_series_reports(devices: object, asked: bool) -> None:
    assert may_fill(Vitals(NODE, devices)) is asked  # type: ignore[arg-type]


def after(devices: object, text: str, expected: int = 1) -> Vitals:
    answer = parse_devices(0, text, NOW)
    return fill_vitals(Vitals(NODE, devices), answer, expected)  # type: ignore[arg-type]


def test_a_replica_without_series_has_what_its_driver_reports() -> None:
    found = after(NO_SERIES, line())

    assert (found.list_unknown(), found.nvidia_smi_error, found.was_asked()) == ((), None, True)


def test_series_win_and_the_driver_fills_the_rest_of_the_same_gpu() -> None:
    hot = replace(XID_ALONE, readings={Vital.LAST_XID: Measured(79.0, NOW)})

    (device,) = fill_vitals(
        Vitals(NODE, Measured((hot,), NOW)), Measured(read_gpus(line(index="0", clocks="0x40")), NOW), 1
    ).devices.value  # type: ignore[union-attr]

    assert (device.name, device.value(Vital.LAST_XID), device.value(Vital.CLOCK_REASONS)) == (
        "GPU 3",
        79,
        0x40,
    )
    assert device.asked == frozenset(FILLED)


def test_what_a_series_reports_is_not_replaced() -> None:
    hot = Device("GPU 3", {Vital.CLOCK_REASONS: Measured(0x40, NOW)}, UUID)

    (device,) = after(Measured((hot,), NOW), line()).devices.value  # type: ignore[union-attr]

    assert device.value(Vital.CLOCK_REASONS) == 0x40
    assert device.reading(Vital.LAST_XID) == NO_SERIES, "an exporter that reports a device reports its XIDs"


def test_another_gpus_numbers_fill_nothing_and_add_nothing() -> None:
    found = after(Measured((XID_ALONE,), NOW), line(uuid=OTHER, clocks="0x40"))

    assert found.devices == Measured((XID_ALONE,), NOW)


def test_a_gpu_that_is_lost_without_a_name_counts_beside_those_of_the_series() -> None:
    lost = Measured(read_gpus("", exit_code=15), NOW)

    found = fill_vitals(Vitals(NODE, Measured((XID_ALONE,), NOW)), lost, 1)

    assert isinstance(found.devices, Measured)
    assert verdict(found.devices.value) == FAULTS


@pytest.mark.parametrize(
    ("listed", "expected", "found"),
    [(1, 0, WELL), (1, 1, WELL), (2, 1, WELL), (1, 2, UNKNOWN), (7, 8, UNKNOWN), (8, 8, WELL)],
)
def test_a_gpu_that_was_given_and_is_not_listed_is_unknown(listed: int, expected: int, found: str) -> None:
    text = "".join(line(index=str(i), uuid=f"{UUID[:-1]}{i}") for i in range(listed))

    seen = after(NO_SERIES, text, expected)

    assert isinstance(seen.devices, Measured)
    assert verdict(seen.devices.value) == found
    assert seen.nvidia_smi_error is (NvidiaSmiError.INCOMPLETE if found == UNKNOWN else None)


def test_several_parts_of_one_gpu_are_one_line() -> None:
    assert after(NO_SERIES, line(mig="Enabled"), expected=2).list_unknown() == ()


@pytest.mark.parametrize("nvidia_smi_error", list(NvidiaSmiError))
def test_a_driver_that_reports_nothing_leaves_all_as_it_was_and_says_what_to_do(
    nvidia_smi_error: NvidiaSmiError,
) -> None:
    found = fill_vitals(Vitals(NODE, NO_SERIES), nvidia_smi_error, 1)

    assert (found.devices, found.nvidia_smi_error) == (NO_SERIES, nvidia_smi_error)
    assert ":" in NVIDIA_SMI_ERRORS[nvidia_smi_error]


def test_a_value_that_is_unknown_is_reported_as_an_incomplete_answer() -> None:
    found = after(NO_SERIES, line(ecc="[N/A]"))

    assert (found.list_unknown(), found.nvidia_smi_error) == (
        (Vital.UNCORRECTABLE_ERRORS,),
        NvidiaSmiError.INCOMPLETE,
    )
