/* packaging/front/front.c as a library: its system calls are the simulated machine's (actors.py, Front).
 *
 * A call returns the result, or a negative errno, or GONE: the process executes another program or has ended.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum call { OPEN, READ, CLOSE, SOCKET, CONNECT, PEER, STAT, SEND, POLL, RECEIVE, WRITE, MEMFD, SEEK, DUP, EXECUTE, EXIT, NOW };
enum { GONE = -4096 };

static long (*machine)(int, long, long, long, long);
static jmp_buf out;

static long call(enum call number, long a, long b, long c, long d)
{
	const long result = machine(number, a, b, c, d);
	if (result == GONE)
		longjmp(out, 1);
	if (result >= 0)
		return result;
	errno = (int)-result;
	return -1;
}

static int call_peer(int fd, int option, void *value)
{
	const int result = (int)call(PEER, fd, option, 0, 0);
	if (result >= 0 && option == SO_PEERCRED)
		*(struct ucred *)value = (struct ucred){.pid = result};
	else if (result >= 0)
		*(int *)value = result;
	return result < 0 ? -1 : 0;
}

static int call_stat(const char *path, struct stat *status)
{
	*status = (struct stat){.st_ino = 1};
	return (int)call(STAT, (long)path, 0, 0, 0);
}

static ssize_t call_send(int fd, struct msghdr *message)
{
	int passed;
	memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof passed);
	return call(SEND, fd, (long)message->msg_iov->iov_base, (long)message->msg_iov->iov_len, passed);
}

#define openat(at, path, flags) ((int)call(OPEN, (long)(path), flags, 0, 0))
#define read(fd, data, size) call(READ, fd, (long)(data), (long)(size), 0)
#define close(fd) call(CLOSE, fd, 0, 0, 0)
#define socket(domain, type, protocol) ((int)call(SOCKET, 0, 0, 0, 0))
#define connect(fd, address, size) ((int)call(CONNECT, fd, (long)((struct sockaddr_un *)(address))->sun_path, 0, 0))
#define getsockopt(fd, level, option, value, size) call_peer(fd, option, value)
#define stat(path, status) call_stat(path, status)
#define sendmsg(fd, message, flags) call_send(fd, message)
#define poll(ready, count, timeout) ((int)call(POLL, (ready)->fd, timeout, 0, 0))
#define recv(fd, data, size, flags) call(RECEIVE, fd, (long)(data), (long)(size), 0)
#define write(fd, data, size) call(WRITE, fd, (long)(data), (long)(size), 0)
#define memfd_create(name, flags) ((int)call(MEMFD, 0, 0, 0, 0))
#define lseek(fd, offset, how) call(SEEK, fd, offset, how, 0)
#define dup2(old, new) ((int)call(DUP, old, new, 0, 0))
#define execve(path, vector, environment) call(EXECUTE, (long)(path), (long)(vector), 0, 0)
#define _exit(status) call(EXIT, status, 0, 0, 0)
#define clock_gettime(clock, time) ((time)->tv_sec = 0, (time)->tv_nsec = call(NOW, 0, 0, 0, 0))
#define signal(number, handler) ((void)0)
#define main front_main
#include FRONT

/* Runs front once. Its variables are as at the start of a process, since the library was just loaded. */
int run_front(long (*of_the_machine)(int, long, long, long, long), int argc, char **argv, char **environment)
{
	machine = of_the_machine;
	if (setjmp(out))
		return -1;
	return front_main(argc, argv, environment);
}
