/* packaging/front/front.c under libFuzzer with clang, under a mutator of its own with gcc, and as a library.
 *
 * An input is a script's head, an agent's answer and arguments, separated by the byte 0xff. The sanitizers hold that no
 * byte beyond a buffer is read or written. What front reads must be what a simple second reading has. As a library it
 * tells which command lines front passes to the runtime without a question.
 */
#ifndef VERSION
#define VERSION "0"
#endif
#define main front_main
#include FRONT
#undef main
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static struct setup used;

void use(const char *decided, const char *passed, const char *values, const char *flags)
{
	used = (struct setup){.decided = strdup(decided), .passed = strdup(passed), .values = strdup(values), .flags = strdup(flags)};
}

/* Whether front asks nobody about these arguments: strings, each with its NUL, and an empty one at their end. */
int passes(char *strings)
{
	char *vector[64];
	size_t count = 0;
	for (; *strings && count < 63; strings += strlen(strings) + 1)
		vector[count++] = strings;
	vector[count] = NULL;
	return changes_nothing(&used, vector);
}

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "not so: %s\n", what);
		abort();
	}
}

static void check_answer(const char *data, size_t length)
{
	static char *vector[ARGUMENTS + 2];
	struct frame *frame = malloc(sizeof *frame);
	const char *rest = NULL;
	size_t size = 0, strings = 0;
	memset(frame->data, 'x', sizeof frame->data);
	frame->size = length;
	memcpy(frame->data, data, length < FRAME ? length : FRAME);
	const enum answer answer = understood(frame, &rest, &size);
	must(rest != NULL, "a rest");
	if (answer != COLD || strcmp(rest, "broken") != 0) {
		must(length > sizeof ANSWER && memcmp(data, ANSWER, sizeof ANSWER) == 0, "the answer begins as one");
		must((unsigned char)data[sizeof ANSWER] == (unsigned char)answer, "the kind");
		must(rest == frame->data + sizeof ANSWER + 1 && size == length - sizeof ANSWER - 1, "the strings");
		must(!size || !rest[size - 1], "the last string ends");
	}
	if (answer == CHANGED) {
		for (size_t at = 0; at < size; at++)
			strings += !rest[at];
		must(split(rest, size, vector) == (strings <= ARGUMENTS), "as many strings as NULs, or too many");
		for (size_t i = 1; strings <= ARGUMENTS && i <= strings; i++)
			must(vector[i] && (i == 1 || vector[i] == vector[i - 1] + strlen(vector[i - 1]) + 1), "each string");
		must(strings > ARGUMENTS || !vector[strings + 1], "the end of the vector");
	}
	free(frame);
}

static void check_request(const struct setup *setup, char **arguments)
{
	char *environment[] = {(char *)"A=1", (char *)"XDG_RUNTIME_DIR=/run/user/1", NULL};
	struct frame *frame = malloc(sizeof *frame);
	frame->size = 0;
	put_request(frame, setup, arguments, environment);
	if (frame->size <= FRAME) {
		const char *at = frame->data;
		for (int i = 0; i < 9; i++)
			at += strlen(at) + 1;
		for (; *arguments; arguments++, at += strlen(at) + 1)
			must(strcmp(at, *arguments) == 0, "an argument of the request");
		must(at == frame->data + frame->size, "nothing after them");
	}
	free(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *parts[3];
	const uint8_t *const end = data + size;
	size_t sizes[3];
	for (int i = 0; i < 3; i++) {
		const uint8_t *stop = i < 2 ? memchr(data, 0xff, (size_t)(end - data)) : NULL;
		stop = stop ? stop : end;
		sizes[i] = (size_t)(stop - data);
		parts[i] = malloc(sizes[i] + 2);
		memcpy(parts[i], data, sizes[i]);
		parts[i][sizes[i]] = parts[i][sizes[i] + 1] = '\0';
		data = stop < end ? stop + 1 : end;
	}
	struct setup setup = {0};
	char *vector[64];
	size_t count = 0;
	for (char *at = parts[2]; at < parts[2] + sizes[2] && count < 63; at += strlen(at) + 1)
		vector[count++] = at;
	vector[count] = NULL;
	char *const text = malloc(HEADER + 1);
	memset(text, 0, HEADER + 1);
	memcpy(text, parts[0], sizes[0] < HEADER ? sizes[0] : HEADER);
	if (read_setup(text, &setup)) {
		must(setup.socket && setup.policy && setup.store && setup.events, "needed values");
		if (setup.real && changes_nothing(&setup, vector))
			for (size_t i = 0; i < count; i++)
				must(!*vector[i] || strchr(vector[i], ' ') || !is_in(setup.decided, vector[i]), "a decided verb passes");
		check_request(&setup, vector);
	}
	free(text);
	check_answer(parts[1], sizes[1]);
	for (int i = 0; i < 3; i++)
		free(parts[i]);
	return 0;
}

#ifdef REPLAY
/* Replays files and mutates each: `front COUNT SEED FILE...`. For machines without clang's libFuzzer. */
int main(int argc, char **argv)
{
	static uint8_t seed[1 << 16], input[1 << 17];
	srand((unsigned)atoi(argv[2]));
	for (long run = 0, count = atol(argv[1]); run < count; run++) {
		FILE *const file = fopen(argv[3 + run % (argc - 3)], "r");
		size_t size = fread(seed, 1, sizeof seed, file);
		fclose(file);
		memcpy(input, seed, size);
		for (int change = run < argc - 3 ? 0 : 1 + rand() % 4; change && size; change--) {
			const size_t at = (size_t)rand() % size, length = (size_t)rand() % (size - at) + 1;
			const int kind = rand() % 4;
			if (kind == 0)
				input[at] = (uint8_t)rand();
			else if (kind == 1)
				memmove(input + at, input + at + length, size - at - length), size -= length;
			else if (kind == 2 && size + length < sizeof input)
				memmove(input + at + length, input + at, size - at), size += length;
			else
				input[at] = (uint8_t)("\0\n# \xff"[rand() % 5]);
		}
		LLVMFuzzerTestOneInput(input, size);
	}
	printf("%s inputs, no failure\n", argv[1]);
	return 0;
}
#endif
