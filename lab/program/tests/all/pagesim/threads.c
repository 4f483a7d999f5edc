/* Each of four threads writes a thousand words of its own and adds a hundred times to one that all have. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_long total;

static void *work(void *given)
{
	volatile long *words = given;
	for (long word = 0; word < 1000; word++)
		words[word] = word;
	for (int add = 0; add < 100; add++)
		atomic_fetch_add(&total, 1);
	return NULL;
}

int main(void)
{
	pthread_t threads[4];
	for (int thread = 0; thread < 4; thread++)
		pthread_create(&threads[thread], NULL, work, malloc(1000 * sizeof(long)));
	for (int thread = 0; thread < 4; thread++)
		pthread_join(threads[thread], NULL);
	printf("total %ld\n", atomic_load(&total));
	return 0;
}
