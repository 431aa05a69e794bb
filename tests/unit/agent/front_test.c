/* front's parsers on examples, under sanitizers: test_front.py builds and runs this. tests/fuzz has random input. */
#define main front_main
#include "../../../packaging/front/front.c"
#undef main

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static struct frame *framed(const char *data, size_t size)
{
	struct frame *frame = malloc(sizeof *frame); /* on the heap: what is read behind it, the sanitizer sees */

	memset(frame->data, 'x', FRAME);
	memcpy(frame->data, data, size);
	frame->size = size;
	return frame;
}

static char told[FRAME];

static enum answer answer_of(const char *data, size_t size)
{
	static char *vector[ARGUMENTS + 2];
	struct frame *frame = framed(data, size);
	const char *rest = NULL;
	size_t left = 0;
	const enum answer answer = understood(frame, &rest, &left);

	if (answer == CHANGED && split(rest, left, vector)) {
		size_t at = 0;

		for (size_t i = 1; vector[i]; i++, at += strlen(rest + at) + 1)
			assert(vector[i] == rest + at);
		assert(at == left);
	}
	if (answer == REFUSED)
		assert(strlen(rest + 1) <= left && *rest);
	if (answer == COLD)
		snprintf(told, sizeof told, "%s", rest); /* always a string within the frame, or one of front's own */
	free(frame);
	return answer;
}
#define ANSWER_OF(text) answer_of(text, sizeof text - 1)
#define P "reassert-agent/1\0"

static void examples(void)
{
	struct setup setup = {0};
	static const struct {
		int passes;
		const char *arguments[6];
	} lines[] = {
		{1, {"state"}},		   {1, {"--root", "/r", "state", "c"}}, {1, {"--root=/r", "--debug", "kill", "c"}},
		{1, {"--platform=x", "state"}}, {0, {"creat", ""}},		{0, {"", "state"}},
		{0, {"create"}},	   {0, {"--root", "create", "state"}},	{0, {"state", "create"}},
		{0, {"--platform", "x", "state"}}, {0, {"-r", "/r", "state"}},	{0, {"--root", "state"}},
		{0, {"--root"}},	   {0, {"--", "state"}},		{1, {NULL}},
		{0, {"stat"}},		   {0, {"--debugs", "state"}},		{0, {"-=", "state"}},
	};
	struct frame *frame = framed("", 0);
	char full[] = "#!/front\n# mark\n# real: /r\n# decided: create run\n# passed: state kill\n# values: --root\n# flags: --debug\n"
		      "# socket: /s\n# policy: /p\n# store: /d\n# events: /e\n\nexit\n# hook: /no\n";
	char cut[] = "#!/front\n# socket: /s\n# policy: /p\n# store: /d\n# events: /e";
	char *large = malloc(FRAME + 1);

	assert(ANSWER_OF(P "G") == GO && ANSWER_OF(P "G\0") == COLD && ANSWER_OF(P "Gx\0") == COLD);
	assert(ANSWER_OF(P "Aa\0\0b\0") == CHANGED && ANSWER_OF(P "Aa") == COLD && ANSWER_OF(P "A") == COLD);
	assert(ANSWER_OF(P "R\1why\0") == REFUSED && ANSWER_OF(P "R\0why\0") == COLD && ANSWER_OF(P "R\1") == COLD);
	assert(ANSWER_OF(P "R\1\0") == REFUSED); /* the agent has written the message to the runtime's standard error */
	assert(ANSWER_OF(P "Cwhy\0") == COLD && strcmp(told, "why") == 0);
	assert(ANSWER_OF(P "C\0") == COLD && strcmp(told, "broken") == 0);
	assert(ANSWER_OF(P "Ca\0b\0") == COLD && strcmp(told, "broken") == 0);
	assert(ANSWER_OF(P "Z") == COLD && ANSWER_OF(P) == COLD && ANSWER_OF("") == COLD);
	assert(ANSWER_OF("reassert-agent/2\0G") == COLD && ANSWER_OF("reassert-agent/1") == COLD);
	assert(read_setup(full, &setup) && strcmp(setup.real, "/r") == 0 && strcmp(setup.events, "/e") == 0);
	assert(!setup.hook);
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
		assert(changes_nothing(&setup, (char **)lines[i].arguments) == lines[i].passes);
	assert(!read_setup(cut, &setup) && !read_setup((char *)"", &setup));
	memset(large, 'a', FRAME);
	large[FRAME - 1] = '\0';
	put(frame, large);
	assert(frame->size == FRAME);
	put(frame, "");
	assert(frame->size > FRAME);
	put(frame, large);
	assert(frame->size > FRAME);
	free(large);
	free(frame);
}

static void deadlines(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	const struct timespec past = {now.tv_sec - 2, now.tv_nsec}, future = {now.tv_sec + 60, now.tv_nsec};
	assert(milliseconds_left(&now) > 0 && milliseconds_left(&now) <= DEADLINE_MS);
	assert(milliseconds_left(&past) == 0 && milliseconds_left(&future) == 0);
}

int main(void)
{
	deadlines();
	examples();
	return 0;
}
