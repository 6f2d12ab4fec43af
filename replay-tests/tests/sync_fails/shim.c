/* A disk that does not confirm what was written for as long as a file is there: preloaded into the
 * daemon, since no file system of a test machine does so on demand. The store's own fsync at its
 * closing goes through: it panics where that fails, which is caught and would look like a defect. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fdatasync(int fd)
{
	const char *file = getenv("SYNC_FAILS_WHILE");

	if (file && access(file, F_OK) == 0) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}
