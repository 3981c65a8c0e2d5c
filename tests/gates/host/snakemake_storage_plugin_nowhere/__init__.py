"""A bucket that has nothing and takes nothing: what is planned where jobs share no folder with this machine."""

from collections.abc import Iterable
from typing import Any

from snakemake_interface_storage_plugins import storage_object, storage_provider
from snakemake_interface_storage_plugins.storage_provider import (
    ExampleQuery,
    StorageQueryValidationResult,
)

PREFIX = "nowhere://"


class StorageProvider(storage_provider.StorageProviderBase):
    @classmethod
    def example_queries(cls) -> list[ExampleQuery]:
        return []

    def rate_limiter_key(self, query: str, operation: Any) -> str:
        return ""

    def default_max_requests_per_second(self) -> float:
        return 100.0

    def use_rate_limiter(self) -> bool:
        return False

    @classmethod
    def is_valid_query(cls, query: str) -> StorageQueryValidationResult:
        return StorageQueryValidationResult(query, query.startswith(PREFIX))


class StorageObject(
    storage_object.StorageObjectRead, storage_object.StorageObjectWrite
):
    def local_suffix(self) -> str:
        return str(self.query).removeprefix(PREFIX)

    async def inventory(self, cache: Any) -> None:
        pass

    def get_inventory_parent(self) -> None:
        return None

    def cleanup(self) -> None:
        pass

    def exists(self) -> bool:
        return False

    def mtime(self) -> float:
        raise FileNotFoundError(self.query)

    def size(self) -> int:
        raise FileNotFoundError(self.query)

    def retrieve_object(self) -> None:
        raise FileNotFoundError(self.query)

    def store_object(self) -> None:
        raise PermissionError(self.query)

    def remove(self) -> None:
        pass

    def list_candidate_matches(self) -> Iterable[str]:
        return []
