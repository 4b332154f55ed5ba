"""A folder of small tweet files, and how to spoil one."""

from pathlib import Path

TRAIN = "rt\t~\n<@MENTION>\t@\n:\t~\n\nlol\t!\nwon't\tV\n\n"
DEV = "i\tO\npredict\tV\n\n"
TEST = "win\tV\n\nlol\t!\n:)\tE\n"  # without a blank line at the end
VECTORS = "UUUNKKK 0.5 0.5\n</s> 1 -1\nrt 1 2\n<@MENTION> 3 4\nlol 5 6\nwon't 7 8\nrt 9 9\n"
CLUSTERS = "0000\ti\t40\n0000\trt\t30\n00010\tlol\t20\n1111111111111111\twin\t10\n"


def write_tweets(root: Path, **changed: str) -> Path:
    """Write ROOT/tweets with the small files; ``changed`` replaces the content of those it names."""
    folder = root / "tweets"
    folder.mkdir()
    contents = {"train": TRAIN, "dev": DEV, "test": TEST, "vectors": VECTORS, "clusters": CLUSTERS, **changed}
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(content.encode())
    return root
