/*
 * A bank whose balances survive the program: each run moves 100 from account 7 to account 8, in a transaction.
 *
 *     cc bank.c $(pkg-config --cflags --libs rvm) -o bank && netram play -- ./bank
 *
 * Lenders and key come from NETRAM_LENDERS and NETRAM_KEY_FILE; `netram play` sets both.
 */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <rvm/netram.h>
#include <rvm/rvm.h>

#define BYTES (1 << 20)

static void check(rvm_return_t code, const char *what)
{
	if (code != RVM_SUCCESS)
		errx(1, "%s: %s", what, rvm_error_text());
}

int main(void)
{
	rvm_options_t options;
	rvm_region_t region;
	rvm_tid_t tid;
	int64_t *balances;

	rvm_init_options(&options);
	options.log_dev = "bank.log";
	options.create_log_file = access("bank.log", F_OK) != 0;
	options.create_log_size = RVM_MK_OFFSET(0, 64 << 20);
	check(RVM_INIT(&options), "opening the log"); /* after a crash, this recovers */
	check(rvm_wait_for_lenders(5000), "waiting for lenders"); /* before that, commits wait for the local disk */

	int file = open("bank.data", O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, BYTES) != 0 || close(file) != 0)
		err(1, "bank.data");
	rvm_init_region(&region);
	region.data_dev = "bank.data";
	region.length = BYTES;
	check(rvm_map(&region, NULL), "mapping the accounts");
	balances = (int64_t *)region.vmaddr;

	rvm_init_tid(&tid);
	check(rvm_begin_transaction(&tid, restore), "beginning");
	check(rvm_set_range(&tid, &balances[7], 2 * sizeof *balances), "declaring"); /* declare, then change */
	balances[7] -= 100;
	balances[8] += 100;
	check(rvm_end_transaction(&tid, flush), "committing");

	printf("balances %jd and %jd\n", (intmax_t)balances[7], (intmax_t)balances[8]);
	return rvm_terminate() == RVM_SUCCESS ? 0 : 1;
}
