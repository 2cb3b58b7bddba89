"""A disk that loses what was not flushed when the power goes, and one whose n-th write fails."""

import os
import stat
import tempfile
from pathlib import Path

CHANGES = ("fsync", "replace", "unlink", "mkdir", "rmdir", "chmod")


class Disk:
    """What would be left of `root` if the power went before each change, and at the end.

    `images` are pairs of dicts from path to contents. The first is of a disk that keeps nothing
    but what was flushed; the second of one that keeps every name at once, but of the contents only
    what was flushed. Inodes stay open, so that none is used twice.
    """

    def __init__(self, root, patch):
        self.root, self.images = Path(root), []
        self._contents, self._entries, self._open = {}, {}, []
        for path in (*self.root.rglob("*"), self.root):  # what is there has been there for long
            self._remember(path)
        for name in CHANGES:
            patch.setattr(os, name, self.before(getattr(os, name), name))

    def before(self, change, name=""):
        """The change, after a note of what would be left if the power went before it."""

        def changed(*given, **named):
            self.images.append((self._left(self._flushed), self._left(self._listed)))
            result = change(*given, **named)
            if name == "fsync":
                self._remember(f"/proc/self/fd/{given[0]}")
            return result

        return changed

    def _remember(self, path):
        handle = os.open(path, os.O_RDONLY)
        self._open.append(handle)
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            self._entries[about.st_ino] = self._listed(os.readlink(f"/proc/self/fd/{handle}"))
        else:
            with open(handle, "rb", closefd=False) as file:
                self._contents[about.st_ino] = file.read()

    def _listed(self, folder, _=None):
        return {
            name: ((found := os.lstat(Path(folder, name))).st_ino, stat.S_ISDIR(found.st_mode))
            for name in os.listdir(folder)
        }

    def _flushed(self, folder, inode):
        return self._entries.get(inode, {})

    def _left(self, entries, folder=None, inode=None, prefix=""):
        folder, inode = (folder, inode) if folder else (self.root, self.root.stat().st_ino)
        found = {}
        for name, (number, is_folder) in entries(folder, inode).items():
            if is_folder:
                found |= self._left(entries, Path(folder, name), number, f"{prefix}{name}/")
            else:
                found[prefix + name] = self._contents.get(number, b"")
        return found

    def close(self):
        """The images; the last is of what is left when all is done."""
        self.images.append((self._left(self._flushed), self._left(self._listed)))
        for handle in self._open:
            os.close(handle)
        return self.images


def restore(image, folder):
    for name, content in image.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class FailingWrite:
    """The `number`-th change of a file or folder raises; `happened` if there were so many."""

    def __init__(self, number, code, patch):
        self.left, self.code, self.happened = number, code, False
        for name in CHANGES:
            patch.setattr(os, name, self.counted(getattr(os, name)))
        patch.setattr(tempfile, "mkstemp", self.counted(tempfile.mkstemp))
        plain_open = Path.open

        def opened(path, mode="r", *given, **named):
            file = plain_open(path, mode, *given, **named)
            if "w" in mode:
                return _Counted(file, self)
            return file

        patch.setattr(Path, "open", opened)

    def counted(self, change):
        def changed(*given, **named):
            self.count()
            return change(*given, **named)

        return changed

    def count(self):
        self.left -= 1
        if self.left == 0:
            self.happened = True
            raise OSError(self.code, os.strerror(self.code))


class _Counted:
    def __init__(self, file, failing):
        self.file, self.failing = file, failing

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.failing.count()
        self.file.write(data[len(data) // 2 :])

    def __getattr__(self, name):
        return getattr(self.file, name)
