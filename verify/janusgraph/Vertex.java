import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import org.apache.tinkerpop.gremlin.structure.Vertex;
import org.janusgraph.core.JanusGraph;
import org.janusgraph.core.JanusGraphFactory;
import org.janusgraph.core.JanusGraphTransaction;
import org.janusgraph.core.PropertyKey;
import org.janusgraph.core.schema.ConsistencyModifier;
import org.janusgraph.core.schema.JanusGraphManagement;

/**
 * A JanusGraph with one vertex, whose property balance is locked when it changes.
 *
 * It says "ready VERTEX PROPERTYKEY", the ids of both; then each line of its input is a balance to
 * set, answered by "ok" or "failed MESSAGE".
 */
class VertexMain {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        JanusGraph graph = null;
        for (int i = 0; graph == null; i++) {
            try {
                graph = open(args);
            } catch (Exception e) { // it may not see yet a table that it has just made
                if (i == 19) {
                    e.printStackTrace();
                    System.exit(1);
                }
                Thread.sleep(500);
            }
        }
        JanusGraphManagement schema = graph.openManagement();
        PropertyKey balance = schema.makePropertyKey("balance").dataType(Integer.class).make();
        schema.setConsistency(balance, ConsistencyModifier.LOCK);
        schema.commit();
        long key = ((Number) graph.getPropertyKey("balance").id()).longValue();
        Vertex ana = graph.addVertex();
        ana.property("balance", 100);
        graph.tx().commit();
        Object id = ana.id();
        out.println("ready " + id + " " + key);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            JanusGraphTransaction tx = graph.newTransaction();
            String answer = "ok";
            try {
                tx.getVertex(id).property("balance", Integer.parseInt(line));
                tx.commit();
            } catch (Throwable e) {
                if (tx.isOpen()) tx.rollback();
                Throwable cause = e;
                while (cause.getCause() != null) cause = cause.getCause();
                answer = "failed " + (e + ", because of " + cause).replace('\n', ' ');
            }
            out.println(answer);
            out.flush();
        }
        System.exit(0);
    }

    private static JanusGraph open(String[] args) {
        return JanusGraphFactory.build()
            .set("storage.backend", "cql").set("storage.hostname", args[0].split(",")).set("storage.port", Integer.parseInt(args[1]))
            .set("storage.cql.local-datacenter", args[2]).set("storage.cql.keyspace", args[3]).set("storage.cql.replication-factor", 3)
            .set("storage.lock.wait-time", Duration.ofMillis(Long.parseLong(args[4]))).set("storage.lock.retries", 10)
            .set("storage.write-time", Duration.ofSeconds(3)).set("ids.block-size", 100).open();
    }
}
