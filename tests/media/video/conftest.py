import pytest

from tests.media.corpus_video import write


@pytest.fixture(scope="session")
def clips(tmp_path_factory):
    """Every clip of the corpus: name → path."""
    return write(tmp_path_factory.mktemp("clips"))
