/* Let the n-th call fail that reads, writes or changes files below a folder: loaded with LD_PRELOAD, armed by ctypes. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SHORTER = -1 }; /* in place of an errno: read or write fewer bytes than asked for */

static char below[4096];
static int wanted, error_number, count;
static char failed[256];

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

void fail_arm(const char *folder, int n, int number) {
    snprintf(below, sizeof below, "%s", folder);
    wanted = n, error_number = number;
    failed[0] = 0;
    __atomic_store_n(&count, 0, __ATOMIC_SEQ_CST);
}

/* The number of calls since it was armed; it is disarmed. */
int fail_disarm(void) {
    below[0] = 0;
    return count;
}

/* What failed: the name of the call and the path. Empty if nothing did. */
const char *fail_place(void) { return failed; }

/* Whether this call is to fail, or to be shorter. */
static int is_turn(const char *call, const char *path) {
    if (!below[0] || !path || strncmp(path, below, strlen(below))) return 0;
    if (__atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) != wanted) return 0;
    snprintf(failed, sizeof failed, "%s %s", call, path);
    return 1;
}

static int is_turn_of(const char *call, int file) {
    char link[64], path[4096];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_turn(call, path);
}

#define FAIL_IF(turn) if ((turn) && error_number != SHORTER) return errno = error_number, -1
/* For calls that no signal interrupts. */
#define FAIL_FOR_GOOD_IF(turn) FAIL_IF((turn) && error_number != EINTR)

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        REAL(name);                                                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = va_arg(rest, mode_t);                                                                            \
        va_end(rest);                                                                                                  \
        FAIL_IF(is_turn("open", path));                                                                                \
        return real(path, flags, mode);                                                                                \
    }
OPEN(open)
OPEN(open64)

#define TRANSFER(name, call, type)                                                                                     \
    ssize_t name(int file, type buffer, size_t size) {                                                                 \
        REAL(name);                                                                                                    \
        int turn = is_turn_of(call, file);                                                                             \
        FAIL_IF(turn);                                                                                                 \
        return real(file, buffer, turn && size > 1 ? size / 2 : size);                                                 \
    }
TRANSFER(read, "read", void *)
TRANSFER(write, "write", const void *)

#define TRANSFER_AT(name, call, type)                                                                                  \
    ssize_t name(int file, type buffer, size_t size, off64_t at) {                                                     \
        REAL(name);                                                                                                    \
        int turn = is_turn_of(call, file);                                                                             \
        FAIL_IF(turn);                                                                                                 \
        return real(file, buffer, turn && size > 1 ? size / 2 : size, at);                                             \
    }
TRANSFER_AT(pread64, "pread", void *)
TRANSFER_AT(pwrite64, "pwrite", const void *)

int fsync(int file) {
    REAL(fsync);
    FAIL_IF(is_turn_of("fsync", file));
    return real(file);
}

int fdatasync(int file) {
    REAL(fdatasync);
    FAIL_FOR_GOOD_IF(is_turn_of("fdatasync", file));
    return real(file);
}

int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    FAIL_IF(is_turn_of("ftruncate", file));
    return real(file, size);
}

/* The file is closed all the same, as by a server that reports only then that it has no space. */
int close(int file) {
    REAL(close);
    int turn = is_turn_of("close", file), result = real(file);
    FAIL_FOR_GOOD_IF(turn);
    return result;
}

int rename(const char *old, const char *new) {
    REAL(rename);
    FAIL_FOR_GOOD_IF(is_turn("rename", new));
    return real(old, new);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    FAIL_FOR_GOOD_IF(is_turn("mkdir", path));
    return real(path, mode);
}

int chmod(const char *path, mode_t mode) {
    REAL(chmod);
    FAIL_FOR_GOOD_IF(is_turn("chmod", path));
    return real(path, mode);
}

DIR *opendir(const char *path) {
    REAL(opendir);
    if (is_turn("opendir", path) && error_number != SHORTER && error_number != EINTR) return errno = error_number, NULL;
    return real(path);
}
