/* Keeps a copy of what was synced, so that a test can see what a power cut would leave.
 *
 * Preloaded into a process. Whatever it syncs below EADT_POWER_ROOT is copied below EADT_POWER_SHADOW once the sync has
 * returned, as it was when the sync was asked for: a file's bytes as f-ID, a folder's entries as d-ID with one line each,
 * "f ID NAME" or "d ID NAME". An ID is the inode's number and time of birth, since numbers are used again. Everything that has
 * no copy was never synced. EADT_POWER_LIE=1: syncs say that they are done, and nothing is kept.
 *
 * One thing is as Linux's file systems do it and not as POSIX promises: with a file in a folder "blobs" the folder's entries are
 * kept, too. The store (lsm-tree 3.1) syncs such a file and not its folder; ext4, XFS and btrfs write the name with the file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_ulong count;

static int id(const struct statx *of, char *text, size_t size) {
    return snprintf(text, size, "%llu-%lld-%u", (unsigned long long)of->stx_ino, (long long)of->stx_btime.tv_sec,
                    of->stx_btime.tv_nsec);
}

static void fail(const char *what) {
    perror(what);
    abort();
}

/* Only what was ever written: journals are made large and empty. */
static void copy_file(int from, int to, off_t size) {
    static _Thread_local char buffer[1 << 16];
    if (ftruncate(to, size) != 0) fail("ftruncate");
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0) {
            if (errno == ENXIO) return;
            fail("SEEK_DATA");
        }
        off_t hole = lseek(from, data, SEEK_HOLE);
        for (at = data; at < hole && at < size;) {
            size_t want = (size_t)(hole - at) < sizeof buffer ? (size_t)(hole - at) : sizeof buffer;
            ssize_t got = pread(from, buffer, want, at);
            if (got <= 0) return; /* It was cut meanwhile: what is asked for next says so. */
            if (pwrite(to, buffer, (size_t)got, at) != got) fail("pwrite");
            at += got;
        }
    }
}

static void copy_folder(const char *path, int to) {
    DIR *folder = opendir(path);
    if (!folder) fail("opendir");
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct statx of;
        char of_id[64];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (statx(dirfd(folder), entry->d_name, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME | STATX_TYPE, &of) != 0) continue;
        id(&of, of_id, sizeof of_id);
        dprintf(to, "%c %s %s\n", S_ISDIR(of.stx_mode) ? 'd' : 'f', of_id, entry->d_name);
    }
    closedir(folder);
}

/* A file for a copy, which has its name only once the sync has returned. */
static int begin(char *draft, size_t size, const char *shadow) {
    snprintf(draft, size, "%s/.draft-%lu", shadow, atomic_fetch_add(&count, 1));
    int to = open(draft, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (to < 0) fail(draft);
    return to;
}

static void keep(const char *draft, const char *shadow, const struct statx *of) {
    char kept[4200], of_id[64];
    id(of, of_id, sizeof of_id);
    snprintf(kept, sizeof kept, "%s/%c-%s", shadow, S_ISDIR(of->stx_mode) ? 'd' : 'f', of_id);
    if (rename(draft, kept) != 0) fail(kept);
}

/* The entries of the folder that this file lies in. */
static void keep_folder_of(const char *file, const char *shadow) {
    char folder[4096], draft[4200];
    struct statx of;
    snprintf(folder, sizeof folder, "%s", file);
    char *end = strrchr(folder, '/');
    if (!end) return;
    *end = 0;
    if (strcmp(strrchr(folder, '/') ? strrchr(folder, '/') : "", "/blobs") != 0) return;
    if (statx(AT_FDCWD, folder, 0, STATX_INO | STATX_BTIME | STATX_TYPE, &of) != 0) fail("statx");
    int to = begin(draft, sizeof draft, shadow);
    copy_folder(folder, to);
    close(to);
    keep(draft, shadow, &of);
}

static int synced(int fd, const char *name) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *root = getenv("EADT_POWER_ROOT"), *shadow = getenv("EADT_POWER_SHADOW");
    char link[64], path[4096], draft[4200];
    struct statx of;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!root || !shadow || length <= 0) return real(fd);
    path[length] = 0;
    if (strncmp(path, root, strlen(root)) != 0) return real(fd);
    if (getenv("EADT_POWER_LIE")) return 0;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME | STATX_TYPE | STATX_SIZE, &of) != 0) fail("statx");
    int to = begin(draft, sizeof draft, shadow);
    if (S_ISDIR(of.stx_mode)) {
        copy_folder(path, to);
    } else {
        /* The file's own descriptor may only write, and its position is not ours. */
        int from = open(link, O_RDONLY | O_CLOEXEC);
        if (from < 0) fail(path);
        copy_file(from, to, (off_t)of.stx_size);
        close(from);
    }
    close(to);
    int result = real(fd);
    if (result == 0) keep(draft, shadow, &of);
    if (result == 0 && !S_ISDIR(of.stx_mode)) keep_folder_of(path, shadow);
    return result;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
