package servers

import (
	"fmt"
	"path/filepath"
	"strings"
)

// logback makes a node log to its standard output.
const logback = `<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
`

// cassandraYAML is the configuration of node n: small, and as durable as in
// production.
//
// commitlog_sync is batch, which writes to disk before it acknowledges. With
// periodic, a killed node may forget what it has acknowledged, even if the machine
// goes on: it reads its log only up to the last mark, and a mark is set every tenth
// of a second. A Paxos promise that one of three nodes forgets is one too many.
//
// Each node has one token, so that none has to choose: the nodes may start in any
// order, or all at once.
func cassandraYAML(dir string, hosts []string, bind string, n, native, storage int, settings []string) []byte {
	in := func(name string) string { return filepath.Join(dir, name) }
	lines := []string{
		"cluster_name: holdfast",
		"num_tokens: 1",
		fmt.Sprintf("initial_token: %d", int64(n-1)*(1<<62)),
		"auto_bootstrap: false",
		"partitioner: org.apache.cassandra.dht.Murmur3Partitioner",
		"endpoint_snitch: SimpleSnitch",
		fmt.Sprintf("seed_provider: [{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{seeds: %q}]}]", strings.Join(hosts, ",")),
		"listen_address: " + bind,
		"broadcast_address: " + hosts[n],
		"rpc_address: " + bind,
		"broadcast_rpc_address: " + hosts[n],
		fmt.Sprintf("storage_port: %d", storage),
		fmt.Sprintf("native_transport_port: %d", native),
		fmt.Sprintf("data_file_directories: [%q]", in("data")),
		fmt.Sprintf("commitlog_directory: %q", in("commitlog")),
		fmt.Sprintf("saved_caches_directory: %q", in("saved_caches")),
		fmt.Sprintf("hints_directory: %q", in("hints")),
		fmt.Sprintf("cdc_raw_directory: %q", in("cdc_raw")),
		"commitlog_sync: batch",
		"commitlog_segment_size: 4MiB",
		"commitlog_total_space: 64MiB",
		"paxos_variant: v2",
		"auto_snapshot: false", // tables are dropped all the time
		"memtable_heap_space: 64MiB",
		"memtable_offheap_space: 32MiB",
		"key_cache_size: 8MiB",
		"counter_cache_size: 0MiB",
		"file_cache_size: 32MiB",
		"networking_cache_size: 32MiB",
	}
	at := map[string]int{}
	var out []string
	for _, line := range append(lines, settings...) {
		key, _, _ := strings.Cut(line, ":")
		if i, ok := at[key]; ok {
			out[i] = line
			continue
		}
		at[key] = len(out)
		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n") + "\n")
}

// What Cassandra has to be allowed to do to the insides of Java.
var (
	javaExports = []string{"java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/java.lang.ref", "java.base/sun.nio.ch",
		"java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server",
		"java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql", "jdk.unsupported/sun.misc", "jdk.attach/sun.tools.attach",
		"jdk.compiler/com.sun.tools.javac.file"}
	javaOpens = []string{"java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect", "java.base/java.io", "java.base/java.nio",
		"java.base/java.util", "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/sun.nio.ch",
		"java.base/jdk.internal.loader", "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.math",
		"java.base/jdk.internal.module", "java.base/jdk.internal.util.jar", "java.rmi/sun.rmi.transport.tcp",
		"jdk.compiler/com.sun.tools.javac", "jdk.management/com.sun.management.internal"}
)

// cassandraArgv is the command that starts a node that lives in dir. Three nodes
// start in half the time if Java's optimizing compiler does not work as well, and if
// the classes come from an archive.
func cassandraArgv(java, lib, dir string, jmx int, options []string) []string {
	conf := filepath.Join(dir, "conf")
	argv := []string{java, "-Xms256m", "-Xmx512m", "-Xss256k", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1",
		"-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off",
		"-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true", "-Djava.io.tmpdir=" + dir}
	for _, m := range javaExports {
		argv = append(argv, "--add-exports="+m+"=ALL-UNNAMED")
	}
	for _, m := range javaOpens {
		argv = append(argv, "--add-opens="+m+"=ALL-UNNAMED")
	}
	argv = append(argv,
		"-Dcassandra.config=file://"+filepath.Join(conf, "cassandra.yaml"),
		"-Dlogback.configurationFile="+filepath.Join(conf, "logback.xml"),
		"-Dcassandra.storagedir="+dir,
		"-Dcassandra.logdir="+dir,
		"-Dcassandra-foreground=yes",
		fmt.Sprintf("-Dcassandra.jmx.local.port=%d", jmx),
		// There are three nodes and they start by themselves: nothing to wait for.
		"-Dcassandra.skip_wait_for_gossip_to_settle=0",
		"-Dcassandra.ring_delay_ms=100",
		"-Dcassandra.superuser_setup_delay_ms=0",
		// A node that has missed a change of the schema asks for it soon.
		"-Dcassandra.migration_delay_ms=200",
		"-Dcassandra.schema_pull_interval_ms=1000",
		"-cp", filepath.Join(lib, "*"))
	return append(append(argv, options...), "org.apache.cassandra.service.CassandraDaemon")
}
