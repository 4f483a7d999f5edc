/* BookKeeper: `servers ZOOKEEPER_PORT sync|nosync` is a ZooKeeper and two bookies; `client ZOOKEEPER_PORT PIPE` adds entries to a ledger that
 * both bookies have to acknowledge. It says `ready`, and answers each line of the named pipe, `put SECONDS` or `count`, as engines in C do. */
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.Locale;

import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.LocalBookKeeper;

public class BookKeeperPeer {
    static final String HOST = "127.0.0.1";
    static final int BOOKIES = 2;
    static final int RECORD_BYTES = 128;
    static final int ENTRIES_READ = 1000;
    static final PrintStream OUT = System.out;

    public static void main(String[] words) throws Exception {
        // Logs go elsewhere.
        System.setOut(System.err);
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("servers"))
            servers(port, words[2].equals("sync"));
        else
            client(port, words[2]);
    }

    static void servers(int port, boolean sync) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setAllowLoopback(true);
        conf.setListeningInterface("lo");
        conf.setAllowEphemeralPorts(true);
        conf.setBookiePort(0);
        conf.setJournalSyncData(sync);
        // One client waits for each entry: without this, its entry waits for more to come.
        conf.setJournalFlushWhenQueueEmpty(true);
        conf.setMetadataServiceUri("zk+null://" + HOST + ":" + port + "/ledgers");
        LocalBookKeeper.getLocalBookies(HOST, port, BOOKIES, true, conf).start();
        OUT.println("ready");
        Thread.sleep(Long.MAX_VALUE);
    }

    static void client(int port, String pipe) throws Exception {
        BookKeeper client = new BookKeeper(HOST + ":" + port);
        LedgerHandle ledger = client.createLedger(BOOKIES, BOOKIES, BOOKIES, BookKeeper.DigestType.CRC32C, new byte[0]);
        OUT.println("ready");
        try (BufferedReader asked = new BufferedReader(new FileReader(pipe))) {
            for (String line = asked.readLine(); line != null; line = asked.readLine())
                OUT.println("answer " + (line.startsWith("put ") ? put(ledger, Double.parseDouble(line.substring(4))) : count(ledger)));
        }
        System.exit(0);
    }

    static String put(LedgerHandle ledger, double seconds) throws Exception {
        byte[] record = new byte[RECORD_BYTES];
        long[] took = new long[1 << 16];
        int done = 0;
        long began = System.nanoTime(), until = began + (long) (seconds * 1e9), last = began;
        while (last < until) {
            ledger.addEntry(record);
            long now = System.nanoTime();
            if (done == took.length)
                took = Arrays.copyOf(took, 2 * done);
            took[done++] = now - last;
            last = now;
        }
        Arrays.sort(took, 0, done);
        return String.format(Locale.ROOT, "%d %.6f %.3f %.3f", done, (last - began) / 1e9, took[done / 2] / 1e3, took[(int) (done * 99L / 100)] / 1e3);
    }

    static long count(LedgerHandle ledger) throws Exception {
        long found = 0, last = ledger.getLastAddConfirmed();
        for (long first = 0; first <= last; first += ENTRIES_READ) {
            Enumeration<LedgerEntry> entries = ledger.readEntries(first, Math.min(last, first + ENTRIES_READ - 1));
            for (; entries.hasMoreElements(); found++)
                entries.nextElement().getEntry();
        }
        return found;
    }
}
