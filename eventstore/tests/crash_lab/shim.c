/* Records everything that a process does to the files below one folder, in one order.
 *
 * Preloaded by the crash lab. One lock is held around each call and its record, so that the order
 * of the records is the order of the calls. CRASH_LAB_ROOT names the folder, CRASH_LAB_TRACE the
 * file for the records. CRASH_LAB_FAIL_SYNC=n has the n-th sync of a file, and every later one,
 * fail with EIO and do nothing.
 *
 * A record: kind u8, inode u64, offset u64, bytes of a u32, bytes of b u32, a, b; the machine's
 * byte order. Paths are absolute.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAKE_DIR = 1, CREATE, WRITE, TRUNCATE, RENAME, LINK, REMOVE, SYNC_FILE, SYNC_DIR };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static size_t root_length;
static int trace = -1;
static long fails_from, syncs;

__attribute__((constructor)) static void start(void)
{
	const char *folder = getenv("CRASH_LAB_ROOT"), *file = getenv("CRASH_LAB_TRACE");
	const char *fail = getenv("CRASH_LAB_FAIL_SYNC");
	if (!folder || !file || strlen(folder) >= sizeof root)
		return;
	strcpy(root, folder);
	root_length = strlen(root);
	fails_from = fail ? atol(fail) : 0;
	trace = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_below(const char *path)
{
	return trace >= 0 && strncmp(path, root, root_length) == 0 &&
	       (path[root_length] == '/' || path[root_length] == 0);
}

/* The absolute path of one that is relative to a folder. */
static const char *absolute(int dir, const char *path, char *into)
{
	char link[64];
	ssize_t length;
	size_t rest = strlen(path);
	if (trace < 0 || path[0] == '/' || dir == AT_FDCWD)
		return path;
	snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
	length = readlink(link, into, 4095);
	if (length < 0 || (size_t)length + 1 + rest > 4095)
		return path;
	into[length] = '/';
	memcpy(into + length + 1, path, rest + 1);
	return into;
}

/* Whether the descriptor is a file or folder below the root, and which. */
static int is_watched(int fd, struct stat *about, char *path)
{
	char link[64];
	ssize_t length;
	if (trace < 0 || fd == trace)
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	length = readlink(link, path, 4095);
	if (length < 0)
		return 0;
	path[length] = 0;
	return is_below(path) && fstat(fd, about) == 0;
}

static void put(const void *bytes, size_t length)
{
	const char *at = bytes;
	while (length > 0) {
		ssize_t wrote = syscall(SYS_write, trace, at, length);
		if (wrote <= 0)
			abort();
		at += wrote;
		length -= (size_t)wrote;
	}
}

static void record(uint8_t kind, uint64_t inode, uint64_t offset, const void *a, size_t a_bytes,
                   const void *b, size_t b_bytes)
{
	unsigned char head[25];
	uint32_t a_length = (uint32_t)a_bytes, b_length = (uint32_t)b_bytes;
	head[0] = kind;
	memcpy(head + 1, &inode, 8);
	memcpy(head + 9, &offset, 8);
	memcpy(head + 17, &a_length, 4);
	memcpy(head + 21, &b_length, 4);
	put(head, sizeof head);
	put(a, a_bytes);
	put(b, b_bytes);
}

static void record_path(uint8_t kind, const char *a, const char *b)
{
	record(kind, 0, 0, a, strlen(a), b ? b : "", b ? strlen(b) : 0);
}

static int open_any(int dir, const char *path, int flags, mode_t mode)
{
	struct stat about;
	char whole[4096];
	int existed, fd;
	path = absolute(dir, path, whole);
	if (trace < 0 || !is_below(path) || !(flags & (O_CREAT | O_TRUNC)))
		return (int)syscall(SYS_openat, dir, path, flags, mode);
	pthread_mutex_lock(&lock);
	existed = stat(path, &about) == 0;
	fd = (int)syscall(SYS_openat, dir, path, flags, mode);
	if (fd >= 0 && fstat(fd, &about) == 0) {
		if (!existed)
			record(CREATE, about.st_ino, 0, path, strlen(path), "", 0);
		else if (flags & O_TRUNC)
			record(TRUNCATE, about.st_ino, 0, "", 0, "", 0);
	}
	pthread_mutex_unlock(&lock);
	return fd;
}

#define OPEN(name)                                              \
	int name(const char *path, int flags, ...)              \
	{                                                       \
		va_list rest;                                   \
		mode_t mode;                                    \
		va_start(rest, flags);                          \
		mode = (mode_t)va_arg(rest, int);               \
		va_end(rest);                                   \
		return open_any(AT_FDCWD, path, flags, mode);   \
	}
#define OPENAT(name)                                            \
	int name(int dir, const char *path, int flags, ...)     \
	{                                                       \
		va_list rest;                                   \
		mode_t mode;                                    \
		va_start(rest, flags);                          \
		mode = (mode_t)va_arg(rest, int);               \
		va_end(rest);                                   \
		return open_any(dir, path, flags, mode);        \
	}
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static ssize_t write_any(int fd, const void *bytes, size_t length, off_t offset, int at_place)
{
	struct stat about;
	char path[4096];
	ssize_t wrote;
	if (!is_watched(fd, &about, path))
		return at_place ? syscall(SYS_pwrite64, fd, bytes, length, offset)
		                : syscall(SYS_write, fd, bytes, length);
	pthread_mutex_lock(&lock);
	if (!at_place) {
		fstat(fd, &about);
		offset = fcntl(fd, F_GETFL) & O_APPEND ? about.st_size : lseek(fd, 0, SEEK_CUR);
		wrote = syscall(SYS_write, fd, bytes, length);
	} else {
		wrote = syscall(SYS_pwrite64, fd, bytes, length, offset);
	}
	if (wrote > 0)
		record(WRITE, about.st_ino, (uint64_t)offset, bytes, (size_t)wrote, "", 0);
	pthread_mutex_unlock(&lock);
	return wrote;
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	return write_any(fd, bytes, length, 0, 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
	return write_any(fd, bytes, length, offset, 1);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset)
{
	return write_any(fd, bytes, length, offset, 1);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	struct stat about;
	char path[4096];
	if (!is_watched(fd, &about, path))
		return syscall(SYS_writev, fd, parts, count);
	/* A short write is allowed, and the caller goes on with the rest. */
	for (int at = 0; at < count; at++)
		if (parts[at].iov_len > 0)
			return write_any(fd, parts[at].iov_base, parts[at].iov_len, 0, 0);
	return 0;
}

static int truncate_any(int fd, off_t length)
{
	struct stat about;
	char path[4096];
	int failed;
	if (!is_watched(fd, &about, path))
		return (int)syscall(SYS_ftruncate, fd, length);
	pthread_mutex_lock(&lock);
	failed = (int)syscall(SYS_ftruncate, fd, length);
	if (!failed)
		record(TRUNCATE, about.st_ino, (uint64_t)length, "", 0, "", 0);
	pthread_mutex_unlock(&lock);
	return failed;
}

int ftruncate(int fd, off_t length) { return truncate_any(fd, length); }
int ftruncate64(int fd, off_t length) { return truncate_any(fd, length); }

static int sync_any(int fd, long number)
{
	struct stat about;
	char path[4096];
	int failed;
	if (!is_watched(fd, &about, path))
		return (int)syscall(number, fd);
	pthread_mutex_lock(&lock);
	syncs++;
	if (fails_from && syncs >= fails_from) {
		pthread_mutex_unlock(&lock);
		errno = EIO;
		return -1;
	}
	failed = (int)syscall(number, fd);
	if (!failed && S_ISDIR(about.st_mode))
		record_path(SYNC_DIR, path, 0);
	else if (!failed)
		record(SYNC_FILE, about.st_ino, 0, "", 0, "", 0);
	pthread_mutex_unlock(&lock);
	return failed;
}

int fsync(int fd) { return sync_any(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_any(fd, SYS_fdatasync); }

/* Makes nothing durable: neither the size nor what the device holds back. */
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned int flags)
{
	return (int)syscall(SYS_sync_file_range, fd, offset, length, flags);
}

#define TWO_PATHS(kind, call, from, to)                         \
	int failed;                                             \
	if (!is_below(to))                                      \
		return call;                                    \
	pthread_mutex_lock(&lock);                              \
	failed = call;                                          \
	if (!failed)                                            \
		record_path(kind, from, to);                    \
	pthread_mutex_unlock(&lock);                            \
	return failed;

int rename(const char *from, const char *to)
{
	TWO_PATHS(RENAME, (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), from, to)
}

int link(const char *from, const char *to)
{
	TWO_PATHS(LINK, (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0), from, to)
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	TWO_PATHS(LINK, (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags), from, to)
}

static int remove_any(int dir, const char *path, int flags)
{
	char whole[4096];
	path = absolute(dir, path, whole);
	TWO_PATHS(REMOVE, (int)syscall(SYS_unlinkat, dir, path, flags), path, path)
}

int rmdir(const char *path) { return remove_any(AT_FDCWD, path, AT_REMOVEDIR); }
int unlink(const char *path) { return remove_any(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return remove_any(dir, path, flags); }

int mkdir(const char *path, mode_t mode)
{
	TWO_PATHS(MAKE_DIR, (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode), path, path)
}
