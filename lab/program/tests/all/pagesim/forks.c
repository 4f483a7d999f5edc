/* Children come off, while a thread references memory without pause (unless it is ALONE); each references much, and ends by exit(). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int done;

#ifndef ALONE
static long words[8192];

static void *busy(void *given)
{
	for (long turn = 0; !atomic_load_explicit(&done, memory_order_relaxed); turn++)
		words[turn % 8192] = turn;
	return given;
}
#endif

int main(void)
{
#ifndef ALONE
	pthread_t thread;
	pthread_create(&thread, NULL, busy, NULL);
#endif
	for (int child = 0; child < 40; child++) {
		pid_t process = fork();
		if (process == 0) {
			char *far = malloc(64 << 20);
			for (long place = 0; place < 64 << 20; place += 4096)
				far[place] = 1;
			exit(far[4096] - 1);
		}
		int status;
		if (process < 0 || waitpid(process, &status, 0) != process || status != 0)
			return 1;
	}
	atomic_store(&done, 1);
#ifndef ALONE
	pthread_join(thread, NULL);
#endif
	printf("all came back\n");
	return 0;
}
