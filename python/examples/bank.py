"""A bank whose balances survive the program: each run moves 100 from account 7 to account 8, in a transaction.

Lenders and key come from NETRAM_LENDERS and NETRAM_KEY_FILE; `netram play` sets both.
"""

import netram
import numpy

store = netram.open("bank.log", create=True)  # after a crash, this recovers
store.wait_for_lenders(5)  # before that, commits wait for the local disk
region = store.segment("bank.data", size="1MiB", create=True).map()
balances = numpy.frombuffer(region, dtype=numpy.int64)  # the recoverable memory itself

with store.transaction() as tx:  # commits at the end; an exception aborts it
    tx.set_range(balances[7:9])  # declare the range, then change it
    balances[7] -= 100
    balances[8] += 100

assert tx.result  # set at the end of the transaction
print(f"balances {balances[7]} and {balances[8]}; lenders that hold the commit: {tx.result.lenders}")
