import gc

import pytest
import torch

from tests.integrations.worlds import watched  # noqa: F401 - a fixture for the whole folder


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()  # Trainer collects garbage as it begins, which takes long where pytest and torch have so much
    yield
    gc.unfreeze()
    torch.set_num_threads(before)
