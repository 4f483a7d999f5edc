/* Writes 8 MiB that do not compress, says so, waits for a word, and ends as it is told. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (2 << 20)

int main(int argc, char **argv)
{
    volatile unsigned *all = malloc(WORDS * sizeof *all);
    unsigned last = 1;
    if (argc != 2 || !all)
        return 2;
    /* It has no child that it did not make. */
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        return 3;
    for (size_t i = 0; i < WORDS; i++) {
        last ^= last << 13;
        last ^= last >> 17;
        last ^= last << 5;
        all[i] = last;
    }
    puts("written");
    fflush(stdout);
    getchar();
    if (!strcmp(argv[1], "leaves"))
        _exit(0);
    if (!strcmp(argv[1], "dies"))
        raise(SIGKILL);
    if (!strcmp(argv[1], "becomes"))
        execlp("cat", "cat", (char *)NULL);
    return strcmp(argv[1], "returns") ? 2 : 0;
}
