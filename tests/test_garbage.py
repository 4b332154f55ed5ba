"""No searches for garbage in a block, and afterwards as before."""

import gc

import pytest

from lit_gelu.garbage import collection_paused


def test_garbage_is_searched_for_again_afterwards():
    assert gc.isenabled()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_after_an_error_too():
    with pytest.raises(ImportError), collection_paused():
        raise ImportError
    assert gc.isenabled()


def test_who_has_turned_it_off_has_it_off():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
