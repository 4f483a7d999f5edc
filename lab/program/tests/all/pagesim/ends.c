/* Ends as it is told. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
	const char *how = count > 1 ? words[1] : "";
	if (!strcmp(how, "signal"))
		raise(SIGKILL);
	if (!strcmp(how, "_exit"))
		_exit(0);
	if (!strcmp(how, "exec"))
		execlp("true", "true", NULL);
	if (!strcmp(how, "start"))
		return system(words[2]) != 0;
	return !strcmp(how, "seven") ? 7 : 0;
}
