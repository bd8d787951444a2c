"""The folder of rollups as an asset, whose check has what is wrong with any of its files."""

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetSpec,
    MetadataValue,
    asset_check,
)

from gazette_platform.assets.checks import SPECS_CHECK, in_lines, result_of
from gazette_platform.lake.rollups import RollupFolder
from gazette_platform.ops.text import counted
from gazette_platform.resources import LakeResource

ROLLUPS_KEY = AssetKey(["rollup_specs"])


def rollups_asset_spec() -> AssetSpec:
    """The folder of rollups."""
    return AssetSpec(
        ROLLUPS_KEY,
        description="The folder of rollups, as the sensor `catalog` last read it.",
        group_name="rollups",
        kinds={"sql"},
    )


def rollups_check() -> AssetChecksDefinition:
    """The check of the folder of rollups."""

    @asset_check(
        asset=ROLLUPS_KEY,
        name=SPECS_CHECK,
        description="All files in the folder of rollups are valid.",
    )
    def look_at_rollups(lake: LakeResource) -> AssetCheckResult:
        return result_of(rollups_evaluation(lake.rollup_folder()))

    return look_at_rollups


def rollups_evaluation(folder: RollupFolder) -> AssetCheckEvaluation:
    """Red, with all that is wrong with any file of the folder."""
    texts = [" ".join(str(error).split()) for error in folder.errors.values()]
    return AssetCheckEvaluation(
        asset_key=ROLLUPS_KEY,
        check_name=SPECS_CHECK,
        passed=not texts,
        severity=AssetCheckSeverity.ERROR,
        description=in_lines(texts) or f"{counted(len(folder.specs), 'rollup')}, 0 files refused.",
        metadata={"rollups": len(folder.specs), "refused": len(texts)},
        blocking=False,
    )


def rollups_materialization(folder: RollupFolder) -> AssetMaterialization:
    """The event of a folder of rollups that is another one than before."""
    return AssetMaterialization(
        asset_key=ROLLUPS_KEY,
        description=f"{counted(len(folder.specs), 'rollup')}, {len(folder.errors)} refused",
        metadata={
            "rollups": MetadataValue.json(list(folder.specs)),
            "refused": MetadataValue.json({file: str(e) for file, e in folder.errors.items()}),
        },
        tags={"dagster/data_version": folder.digest},
    )
