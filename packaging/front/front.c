/* front: the program that an engine calls as its OCI runtime or hook. It asks the resident agent (docs/internals/agent.md).
 *
 * It is the interpreter (execve(2)) of a text file that `reassert dispatcher --socket` prints: lines with the socket and
 * the options of the request, then a script for sh, the cold start. The agent answers: run the real runtime with the
 * same arguments, run it with others, refuse, or start cold. After any other answer front starts cold too. It decides
 * nothing. The real runtime gets the engine's environment, descriptors, signals and working directory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { HEADER = 4096, FRAME = 65536, ARGUMENTS = 1024, DEADLINE_MS = 1000, STDIN_LIMIT = 8 << 20, REASON = 32 };
enum { PEERPIDFD = 77 }; /* SO_PEERPIDFD, which musl's headers lack */
enum answer { GO = 'G', CHANGED = 'A', REFUSED = 'R', COLD = 'C' };

static const char REQUEST[] = "reassert-front/1", ANSWER[] = "reassert-agent/1";

static const char *reason = "unreadable"; /* why the script runs, if it does (docs/internals/agent.md) */

/* The values in the text file; NULL for one that is missing. `real`: NULL for a hook. */
struct setup {
	const char *real, *decided, *passed, *values, *flags, *socket, *policy, *store, *events, *hook;
};

/* A message from or to the agent: strings that end with NUL. */
struct frame {
	size_t size;
	char data[FRAME];
};

/* Reads the lines `# NAME: VALUE` below the first line. Returns whether every needed value was found. */
static int read_setup(char *text, struct setup *setup)
{
	static const char *const names[] = {"# real: ",	  "# decided: ", "# passed: ", "# values: ", "# flags: ",
					    "# socket: ", "# policy: ",	 "# store: ",  "# events: ", "# hook: "};
	const char **const values[] = {&setup->real,   &setup->decided, &setup->passed, &setup->values, &setup->flags,
				       &setup->socket, &setup->policy,	&setup->store,	&setup->events, &setup->hook};
	char *end = strchr(text, '\n');
	while (end && end[1] == '#') {
		char *const line = end + 1;
		end = strchr(line, '\n');
		if (!end)
			return 0;
		*end = '\0';
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (strncmp(line, names[i], strlen(names[i])) == 0)
				*values[i] = line + strlen(names[i]);
	}
	return end && setup->socket && setup->policy && setup->store && setup->events &&
	       (!setup->real || (setup->decided && setup->passed && setup->values && setup->flags));
}

/* Whether an argument is one of the words. */
static int is_in(const char *words, const char *argument)
{
	for (const char *word = words + strspn(words, " "); *word; word += strspn(word, " ")) {
		const size_t size = strcspn(word, " ");
		if (strlen(argument) == size && memcmp(word, argument, size) == 0)
			return 1;
		word += size;
	}
	return 0;
}

/* Whether the command changes nothing, so that the agent is not asked: its verb, after known options, is in `passed`,
 * and no argument is in `decided`. The agent reads all other command lines. */
static int changes_nothing(const struct setup *setup, char **arguments)
{
	if (!*arguments)
		return 1; /* every runtime prints its help */
	for (char **each = arguments; *each; each++)
		if (is_in(setup->decided, *each))
			return 0;
	for (; *arguments; arguments++) {
		const int is_long = strncmp(*arguments, "--", 2) == 0;
		if (is_in(setup->values, *arguments)) {
			if (!*++arguments)
				return 0;
		} else if (!(is_long && strchr(*arguments, '=')) && !is_in(setup->flags, *arguments)) {
			return is_in(setup->passed, *arguments);
		}
	}
	return 0;
}

/* Appends a string and its NUL. If it does not fit, the frame becomes too large to be sent. */
static void put(struct frame *frame, const char *text)
{
	const size_t size = strlen(text) + 1;
	if (frame->size <= FRAME && size <= FRAME - frame->size)
		memcpy(frame->data + frame->size, text, size);
	frame->size = frame->size <= FRAME ? frame->size + size : frame->size;
}

static void put_request(struct frame *frame, const struct setup *setup, char **arguments, char **environment)
{
	static const char name[] = "XDG_RUNTIME_DIR=";
	while (*environment && strncmp(*environment, name, sizeof name - 1) != 0)
		environment++;
	const char *const parts[] = {REQUEST, VERSION, setup->real ? "runtime" : "hook", setup->real, setup->policy,
				     setup->store, setup->events, setup->hook,
				     *environment ? *environment + sizeof name - 1 : NULL};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		put(frame, parts[i] ? parts[i] : "");
	for (; *arguments; arguments++)
		put(frame, *arguments);
}

/* Returns the kind of an answer and its strings: the reason of one that is COLD. A malformed answer is COLD. */
static enum answer understood(const struct frame *frame, const char **rest, size_t *size)
{
	const size_t start = sizeof ANSWER + 1;
	*rest = "broken";
	if (frame->size < start || frame->size > FRAME || memcmp(frame->data, ANSWER, sizeof ANSWER) != 0)
		return COLD;
	const char kind = frame->data[start - 1], *const strings = frame->data + start;
	*size = frame->size - start;
	if (*size && strings[*size - 1] != '\0')
		return COLD;
	const int is_one = *size > 1 && strlen(strings) == *size - 1;
	if ((kind == GO && !*size) || (kind == CHANGED && *size) || (kind == COLD && is_one) ||
	    (kind == REFUSED && *size > 1 && *strings)) { /* one character is the status, then the message, which may be empty */
		*rest = strings;
		return (enum answer)kind;
	}
	return COLD;
}

/* Splits strings into an argument vector, from its second element on. Returns whether they fit. */
static int split(const char *rest, size_t size, char **vector)
{
	size_t count = 1;
	for (size_t at = 0; at < size; at += strlen(rest + at) + 1) {
		if (count > ARGUMENTS)
			return 0;
		vector[count++] = (char *)(rest + at);
	}
	vector[count] = NULL;
	return 1;
}

static int milliseconds_left(const struct timespec *began)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	const long long gone = (now.tv_sec - began->tv_sec) * 1000LL + (now.tv_nsec - began->tv_nsec) / 1000000;
	return gone < 0 || gone >= DEADLINE_MS ? 0 : (int)(DEADLINE_MS - gone);
}

/* Whether the process that listens is no container's: init, which is systemd for its own socket and whose pid no other
 * process ever gets, or one of this process's mount and user namespace. If that one lives after /proc was read, the pid
 * was its own; Linux before 6.5 cannot say so. */
static int is_the_nodes(int fd, pid_t pid)
{
	static const char *const own[] = {"/proc/self/ns/mnt", "/proc/self/ns/user"};
	struct pollfd process = {.events = POLLIN};
	struct stat here, there;
	socklen_t size = sizeof process.fd;
	char path[32] = "/proc/", *end = path + strlen(path);
	if (pid == 1)
		return 1;
	for (pid_t unit = 1000000000; unit; unit /= 10)
		if (pid >= unit)
			*end++ = (char)('0' + pid / unit % 10);
	for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
		strcpy(end, own[i] + strlen("/proc/self"));
		if (stat(own[i], &here) || stat(path, &there) || here.st_dev != there.st_dev || here.st_ino != there.st_ino)
			return 0;
	}
	if (getsockopt(fd, SOL_SOCKET, PEERPIDFD, &process.fd, &size) < 0)
		return 0;
	const int lives = poll(&process, 1, 0) == 0;
	close(process.fd);
	return lives;
}

/* Returns a socket that is connected to an agent run by root, or -1. The agent's pid is 0 in a pid namespace below. */
static int connected(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t size = sizeof peer;
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	reason = "absent";
	if (fd < 0 || strlen(path) >= sizeof address.sun_path)
		return -1;
	memcpy(address.sun_path, path, strlen(path));
	const int listens = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
	if (listens && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0 && peer.pid &&
	    is_the_nodes(fd, peer.pid))
		return fd;
	reason = listens ? "peer" : errno == EAGAIN ? "busy" : "absent";
	close(fd);
	return -1;
}

/* Sends the frame and a descriptor: the working directory of a runtime, or a copy of a hook's stdin. */
static int sent(int fd, struct frame *frame, int passed)
{
	union {
		char buffer[CMSG_SPACE(sizeof passed)];
		struct cmsghdr aligned;
	} control = {{0}};
	struct iovec data = {frame->data, frame->size};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control.buffer};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	*header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(header), &passed, sizeof passed);
	return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)frame->size;
}

/* Sends the request and waits for the answer until the deadline.
 *
 * Before the agent renames a corrected file over the engine's, it sees the connection open. Its temporary file is named
 * by this process's pid, and a cold start removes that first. So an agent that continues later cannot rename it.
 */
static enum answer ask(const char *path, struct frame *frame, int passed, const char **rest, size_t *size)
{
	static char told[REASON];
	struct timespec began;
	clock_gettime(CLOCK_MONOTONIC, &began);
	struct pollfd ready = {.fd = frame->size > FRAME ? -1 : connected(path), .events = POLLIN};
	if (ready.fd < 0)
		return COLD;
	enum answer answer = COLD;
	*rest = "broken";
	if (sent(ready.fd, frame, passed)) {
		int count;
		while ((count = poll(&ready, 1, milliseconds_left(&began))) < 0 && errno == EINTR)
			;
		const ssize_t got = count > 0 ? recv(ready.fd, frame->data, FRAME, MSG_TRUNC) : 0;
		frame->size = got < 0 ? 0 : (size_t)got;
		answer = understood(frame, rest, size);
		*rest = count > 0 ? *rest : "timeout";
	}
	if (answer == COLD)
		reason = memcpy(told, *rest, strnlen(*rest, sizeof told - 1));
	return answer; /* execve(2) closes all three descriptors */
}

static void say(const char *text)
{
	ssize_t written;
	signal(SIGPIPE, SIG_IGN); /* the exit status counts, also where stderr has no reader */
	for (size_t size = strlen(text); size && (written = write(2, text, size)) > 0; size -= (size_t)written)
		text += written;
}

/* Replaces stdin by a copy that can be read twice. Returns its descriptor or -1. Ends the process if bytes are lost. */
static int copy_of_stdin(void)
{
	static char chunk[FRAME];
	const int fd = memfd_create("stdin", MFD_CLOEXEC);
	size_t total = 0;
	ssize_t got = -1;
	while (fd >= 0 && total <= STDIN_LIMIT && (got = read(0, chunk, sizeof chunk)) != 0) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && !total)
			return -1; /* execve(2) closes the other */
		if (got < 0 || write(fd, chunk, (size_t)got) != got) {
			say("reassert: stdin cannot be copied into memory\n");
			_exit(1);
		}
		total += (size_t)got;
	}
	if (fd >= 0 && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, 0) == 0)
		return fd;
	return -1;
}

/* Executes the script, which removes its first argument. Returns the exit status if that fails. */
static int cold(size_t count, char *script, char **arguments, char **environment)
{
	char option[REASON + sizeof "--cold="] = "--cold=", *vector[count + 4]; /* Linux: a quarter of the stack at most */
	vector[0] = (char *)"/bin/sh", vector[1] = script, vector[2] = strcat(option, reason);
	memcpy(vector + 3, arguments, (count + 1) * sizeof *vector);
	execve(vector[0], vector, environment);
	say("reassert: cannot run /bin/sh\n");
	return 127;
}

int main(int argc, char **argv, char **environment)
{
	static char text[HEADER + 1], *vector[ARGUMENTS + 2];
	static struct frame frame;
	struct setup setup = {0};
	const char *rest = NULL;
	size_t size = 0, count = (size_t)argc - 2; /* of the arguments that the engine gave */
	if (argc < 2) {
		say("usage: front FILE [ARGUMENT…], where FILE is the output of `reassert dispatcher --socket`\n");
		return 2;
	}
	char *const script = argv[1];
	const int file = openat(AT_FDCWD, script, O_RDONLY | O_CLOEXEC); /* musl's open(2) calls fcntl(2) too */
	if (file < 0 || read(file, text, HEADER) <= 0 || !read_setup(text, &setup))
		return cold(count, script, argv + 2, environment);
	argv[1] = vector[0] = (char *)setup.real;
	reason = "exec";
	enum answer answer = GO;
	if (!setup.real || !changes_nothing(&setup, argv + 2)) {
		put_request(&frame, &setup, argv + 2, environment);
		reason = "request";
		const int passed = setup.real ? openat(AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC) : copy_of_stdin();
		answer = passed >= 0 ? ask(setup.socket, &frame, passed, &rest, &size) : COLD;
		reason = answer == COLD ? reason : "exec";
	}
	if (answer == REFUSED)
		return say(rest + 1), (unsigned char)*rest;
	if (answer == GO && !setup.real)
		return 0;
	if (answer == GO)
		execve(setup.real, argv + 1, environment);
	if (answer == CHANGED && setup.real && split(rest, size, vector))
		execve(setup.real, vector, environment);
	return cold(count, script, argv + 2, environment);
}
