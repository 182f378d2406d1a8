import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import org.janusgraph.diskstorage.StaticBuffer;
import org.janusgraph.diskstorage.configuration.ModifiableConfiguration;
import org.janusgraph.diskstorage.cql.CQLConfigOptions;
import org.janusgraph.diskstorage.cql.CQLStoreManager;
import org.janusgraph.diskstorage.keycolumnvalue.KeyColumnValueStore;
import org.janusgraph.diskstorage.keycolumnvalue.StoreTransaction;
import org.janusgraph.diskstorage.locking.Locker;
import org.janusgraph.diskstorage.locking.consistentkey.ConsistentKeyLocker;
import org.janusgraph.diskstorage.util.KeyColumn;
import org.janusgraph.diskstorage.util.StandardBaseTransactionConfig;
import org.janusgraph.diskstorage.util.StaticArrayBuffer;
import org.janusgraph.diskstorage.util.time.TimestampProviders;
import org.janusgraph.graphdb.configuration.GraphDatabaseConfiguration;

/**
 * Drives JanusGraph's own ConsistentKeyLocker, as a JanusGraph over Cassandra sets it up, by lines
 * on standard input, one transaction at a time:
 *
 *   write KEY COLUMN   writeLock, in the transaction that is open or a new one
 *   check              checkLocks
 *   delete             deleteLocks, and the end of the transaction
 *   lock KEY COLUMN    write and check, and delete if either fails
 *
 * Keys and columns are in hexadecimal. Each line is answered by "ok BEGAN ENDED" or
 * "failed BEGAN ENDED CLASS MESSAGE", the two in nanoseconds of the kernel's monotonic clock.
 * It says "ready" first, and ends with its input.
 */
class LockerMain {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what others have to say is no answer
        int n = 0;
        String hosts = args[n++], port = args[n++], datacenter = args[n++], keyspace = args[n++], table = args[n++];
        String rid = args[n++], unit = args[n++];
        Duration wait = Duration.ofMillis(Long.parseLong(args[n++]));
        Duration expire = Duration.ofMillis(Long.parseLong(args[n++]));
        int retries = Integer.parseInt(args[n++]);
        boolean clean = Boolean.parseBoolean(args[n++]);

        ModifiableConfiguration config = GraphDatabaseConfiguration.buildGraphConfiguration();
        config.set(GraphDatabaseConfiguration.STORAGE_HOSTS, hosts.split(","));
        config.set(GraphDatabaseConfiguration.STORAGE_PORT, Integer.parseInt(port));
        config.set(GraphDatabaseConfiguration.UNIQUE_INSTANCE_ID, rid);
        config.set(GraphDatabaseConfiguration.TIMESTAMP_PROVIDER, TimestampProviders.valueOf(unit));
        config.set(GraphDatabaseConfiguration.LOCK_WAIT, wait);
        config.set(GraphDatabaseConfiguration.LOCK_EXPIRE, expire);
        config.set(GraphDatabaseConfiguration.LOCK_RETRY, retries);
        config.set(GraphDatabaseConfiguration.LOCK_CLEAN_EXPIRED, clean);
        config.set(GraphDatabaseConfiguration.LOCK_LOCAL_MEDIATOR_GROUP, "one");
        config.set(CQLConfigOptions.LOCAL_DATACENTER, datacenter);
        config.set(CQLConfigOptions.KEYSPACE, keyspace);
        config.set(CQLConfigOptions.REPLICATION_FACTOR, 3);

        CQLStoreManager manager = new CQLStoreManager(config);
        KeyColumnValueStore store = null;
        for (int i = 0; store == null; i++) {
            try {
                store = manager.openDatabase(table);
            } catch (Exception e) { // it may not see yet the table that it has just made
                if (i == 9) throw e;
                Thread.sleep(500);
            }
        }
        Locker locker = new ConsistentKeyLocker.Builder(store, manager).fromConfig(config).build();
        LockerMain it = new LockerMain(manager, locker, TimestampProviders.valueOf(unit));
        out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            long began = System.nanoTime();
            String answer = "ok", why = "";
            try {
                it.run(line.split(" "));
            } catch (Throwable e) {
                answer = "failed";
                Throwable cause = e;
                while (cause.getCause() != null) cause = cause.getCause();
                why = " " + e.getClass().getSimpleName() + " " + (e + ", because of " + cause).replace('\n', ' ');
            }
            out.println(answer + " " + began + " " + System.nanoTime() + why);
            out.flush();
        }
        System.exit(0);
    }

    private final CQLStoreManager manager;
    private final Locker locker;
    private final TimestampProviders times;
    private StoreTransaction tx;

    private LockerMain(CQLStoreManager manager, Locker locker, TimestampProviders times) {
        this.manager = manager;
        this.locker = locker;
        this.times = times;
    }

    private void run(String[] line) throws Exception {
        switch (line[0]) {
            case "write" -> write(line[1], line[2]);
            case "check" -> locker.checkLocks(tx);
            case "delete" -> delete();
            case "lock" -> {
                try {
                    write(line[1], line[2]);
                    locker.checkLocks(tx);
                } catch (Throwable e) {
                    delete();
                    throw e;
                }
            }
            default -> throw new IllegalArgumentException(line[0]);
        }
    }

    private void write(String key, String column) throws Exception {
        if (tx == null) {
            // As JanusGraph opens those of its locks: at QUORUM.
            tx = manager.beginTransaction(new StandardBaseTransactionConfig.Builder()
                .timestampProvider(times).customOptions(manager.getFeatures().getKeyConsistentTxConfig()).build());
        }
        locker.writeLock(new KeyColumn(bytes(key), bytes(column)), tx);
    }

    private void delete() throws Exception {
        if (tx == null) return;
        try {
            locker.deleteLocks(tx);
        } finally {
            tx.rollback();
            tx = null;
        }
    }

    private static StaticBuffer bytes(String hex) {
        return StaticArrayBuffer.of(HexFormat.of().parseHex(hex));
    }
}
