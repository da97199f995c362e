"""Faults in what makes stores of many queues fast: the manifest, and one sync for many files."""

from tests.plants.planting import Plant

MANIFEST = "tests/unit/durability/test_manifest.py"
VOLUME = "tests/unit/files/test_files.py"
PLANTS = {
    "manifest-unsummed": Plant(
        "a manifest is believed though a byte of it has flipped",
        "penstock.durability.side_folder",
        "if magic != _MAGIC or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(bytes(body)):",
        "if magic != _MAGIC:",
        (f"{MANIFEST}::test_no_flipped_bit_is_believed",),
    ),
    "manifest-of-any-close": Plant(
        "a manifest of an earlier close is believed",
        "penstock.durability.side_folder",
        "return found[1] if found is not None and found[0] == digest else {}",
        "return found[1] if found is not None else {}",
        (f"{MANIFEST}::test_one_of_an_earlier_close_is_not_given_to_anybody",),
    ),
    "noted-ends-unchecked": Plant(
        "where a queue was noted to end is not held against its files",
        "penstock_index.queue_state",
        "if high < begin or not folder.is_absent(high):",
        "if high < begin:",
        (f"{MANIFEST}::test_a_forged_one_is_held_against_the_files[shorter]",),
    ),
    "noted-records-unchecked": Plant(
        "the last record that was noted of a queue is not held against its files",
        "penstock_index.queue_state",
        "if known.last != (folder.place(high - 1) if high > begin else -1):",
        "if high < begin:",
        (f"{MANIFEST}::test_a_forged_one_is_held_against_the_files[more]",),
    ),
    "volume-unsynced": Plant(
        "many files are taken for durable that nobody synced",
        "penstock_index.queue_files",
        "            volume.sync()\n",
        "",
        (
            f"{VOLUME}::test_many_are_synced_together",
            f"{VOLUME}::test_its_failure_fails_the_store[False]",
        ),
    ),
    "volume-elsewhere": Plant(
        "what is mounted below is taken for synced",
        "penstock_index.queue_files",
        "return volume.holds(str(path))",
        "return True",
        (f"{VOLUME}::test_what_is_mounted_below_is_synced_by_itself",),
    ),
    "volume-before-5.8": Plant(
        "a kernel whose syncfs reports no failure is asked",
        "penstock.files.volume",
        "_LINUX_MIN = (5, 8)",
        "_LINUX_MIN = (5, 4)",
        (f"{VOLUME}::test_an_older_kernel_has_no_volume[5.7.19-False]",),
    ),
}
