package mysql

import (
	"database/sql"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// A variable is one of the server's, as its own list has it.
type variable struct {
	name, kind, value  string
	usual, least, most sql.NullString
	values             sql.NullString // by commas
}

// byHand are values of variables whose kind does not say which there are, or
// where others than the ends of the range matter.
var byHand = map[string][]string{
	"character_set_client":           {`'latin1'`, `'gbk'`, `'utf8mb3'`},
	"character_set_connection":       {`'latin1'`, `'utf16'`, `'utf8mb3'`},
	"character_set_database":         {`'latin1'`, `'ucs2'`, `'utf8mb3'`},
	"character_set_filesystem":       {`'latin1'`},
	"character_set_results":          {`'latin1'`, `'utf16'`, `'utf8mb3'`},
	"character_set_server":           {`'latin1'`, `'ucs2'`, `'utf8mb3'`},
	"collation_connection":           {`'utf8mb4_bin'`, `'latin1_german1_ci'`, `'utf32_general_ci'`, `'utf8mb4_turkish_ci'`},
	"collation_database":             {`'utf8mb4_bin'`, `'latin1_german1_ci'`},
	"collation_server":               {`'utf8mb4_bin'`, `'latin1_german1_ci'`, `'utf8mb4_turkish_ci'`},
	"default_storage_engine":         {`'Aria'`, `'MEMORY'`},
	"default_tmp_storage_engine":     {`'Aria'`, `'MEMORY'`},
	"enforce_storage_engine":         {`'Aria'`},
	"innodb_flush_log_at_trx_commit": {`0`, `2`, `3`},
	"innodb_lock_wait_timeout":       {`0`, `1`, `1000`},
	"lc_messages":                    {`'de_DE'`, `'ja_JP'`},
	"lc_time_names":                  {`'de_DE'`},
	"log_output":                     {`'NONE'`, `'TABLE'`},
	"max_allowed_packet":             {`1024`, `1048576`, `4194304`, `1073741824`},
	"max_join_size":                  {`1`, `40`},
	"max_password_errors":            {`1`},
	"replicate_do_db":                {`'other'`},
	"replicate_ignore_db":            {`'other'`},
	"session_track_system_variables": {`''`, `'*'`},
	"slow_query_log_file":            {`'other-slow.log'`},
	"sync_binlog":                    {`0`, `40`},
	"system_versioning_asof":         {`'2000-01-01'`},
	"time_zone":                      {`'+12:59'`, `'-12:59'`},
	"init_connect": {
		`'set autocommit = 0'`, `'set autocommit = 0, completion_type = 2'`, `'start transaction read only'`,
		`'set sql_select_limit = 1, sql_safe_updates = 1, sql_big_selects = 0'`,
		`'set unique_checks = 0, foreign_key_checks = 0'`, `'set timestamp = 1000000000'`, `'start transaction'`,
		`'set sql_mode = "ORACLE,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES"'`,
		`'set character_set_results = utf16'`, `'set character_set_results = null'`, `'set collation_connection = utf32_bin'`,
		`'set names latin1'`, `'set names gbk'`, `'set names utf8mb3'`, `'set names big5'`,
		`'set tx_isolation = "SERIALIZABLE"'`, `'set tx_isolation = "READ-UNCOMMITTED"'`, `'set transaction isolation level serializable'`,
		`'set wait_timeout = 1, net_write_timeout = 1, net_read_timeout = 1'`, `'set time_zone = "+05:30", default_week_format = 3'`,
	},
}

// leftOut are variables that are not tried, and why.
var leftOut = map[string]string{
	"innodb_buffer_pool_size":      "takes the server's time, and is nothing that a statement sees",
	"innodb_log_file_size":         "the same",
	"innodb_max_purge_lag_wait":    "is a command: it waits",
	"rpl_semi_sync_master_enabled": "without a replica the first commit waits for it for ten seconds",
	"wsrep_reject_queries":         "also refuses the statement that sets it back",
}

// without are those that have no other value: what they name is not there, or may
// only be set while the server replicates from another, or in a cluster.
var without = strings.Fields(`
ft_boolean_syntax general_log_file gtid_binlog_state gtid_pos_auto_engines gtid_slave_pos init_slave innodb_ft_aux_table
innodb_ft_server_stopword_table innodb_ft_user_stopword_table innodb_monitor_disable innodb_monitor_enable innodb_monitor_reset
innodb_monitor_reset_all innodb_tmpdir key_buffer_size log_slow_query_file max_user_connections proxy_protocol_networks replicate_do_table replicate_ignore_table
replicate_rewrite_db replicate_wild_do_table replicate_wild_ignore_table sql_log_bin storage_engine tcp_nodelay
innodb_encrypt_tables wsrep_cluster_address wsrep_cluster_name wsrep_dbug_option wsrep_desync wsrep_max_ws_size wsrep_node_address wsrep_node_incoming_address
wsrep_node_name wsrep_on wsrep_provider_options wsrep_slave_threads wsrep_sst_auth wsrep_sst_donor wsrep_sst_method wsrep_sst_receive_address
wsrep_start_position wsrep_trx_fragment_size wsrep_trx_fragment_unit`)

// refusals are what is said of settings with which there are no locks, or which let
// the application's own transaction do nothing; some of them by chance.
var refusals = map[string]string{
	"binlog_format = 'STATEMENT'":              "binlog_format is STATEMENT",
	"wsrep_forced_binlog_format = 'STATEMENT'": "wsrep_forced_binlog_format is STATEMENT",
	"innodb_flush_log_at_trx_commit = 0":       "innodb_flush_log_at_trx_commit is 0",
	"innodb_flush_log_at_trx_commit = 2":       "innodb_flush_log_at_trx_commit is 2",
	"max_allowed_packet = 1024":                "max_allowed_packet is 1024",
	"max_allowed_packet = 1048576":             "max_allowed_packet is 1048576",
	"max_prepared_stmt_count = 0":              "max_prepared_stmt_count",
	"max_prepared_stmt_count = 1":              "max_prepared_stmt_count",
	"max_session_mem_used = 8192":              "max-session-mem-used",
	"read_only = 1":                            "read-only",
	"require_secure_transport = 1":             "Access denied",
	"sync_binlog = 0":                          "sync_binlog is 0",
	"sync_binlog = 40":                         "sync_binlog is 40",
	"sql_select_limit = 0":                     "the view: sql: no rows",
	"max_join_size = 40":                       "the view: Error 1104",
	"max_join_size = 1":                        "Error 1104",
	"max_statement_time = 0.001":               "perhaps in a transaction of the application",
	"tmp_disk_table_size = 1024":               "the view: Error 1114",
	"tx_read_only = 1":                         "Error 1792",
}

// others are values that the variable does not have by default, as SQL has them.
func (v variable) others() (list []string) {
	if list, ok := byHand[v.name]; ok {
		return list
	}
	add := func(value string) {
		if !strings.EqualFold(value, v.value) && !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	text := func(value string) { add(`'` + value + `'`) }
	words := strings.Split(v.values.String, ",")
	switch v.kind {
	case "BOOLEAN":
		if strings.EqualFold(v.value, "ON") {
			add("0")
		} else {
			add("1")
		}
	case "ENUM":
		for _, w := range words {
			if !strings.EqualFold(w, v.value) {
				text(w)
			}
		}
	case "SET":
		text("")
		for _, w := range words {
			text(w)
		}
		text(v.values.String)
	case "FLAGSET":
		for flag := range strings.SplitSeq(v.value, ",") {
			if name, on := strings.CutSuffix(flag, "=on"); on {
				text(name + "=off")
			} else {
				text(strings.TrimSuffix(flag, "=off") + "=on")
			}
		}
	case "VARCHAR":
	default: // numbers
		add(v.least.String)
		if v.kind == "DOUBLE" {
			add("0.001")
			break
		}
		n, _ := strconv.ParseUint(v.usual.String, 10, 64)
		most, _ := strconv.ParseUint(v.most.String, 10, 64)
		for _, other := range []uint64{1, 40, 2*min(n, 1<<40) + 1} {
			least, _ := strconv.ParseInt(v.least.String, 10, 64)
			if other <= most && int64(other) > least {
				add(strconv.FormatUint(other, 10))
			}
		}
	}
	return list
}

// A setting is a value of a variable.
type setting struct {
	variable
	to string
}

func (s setting) String() string { return s.name + " = " + s.to }

// back is the value that the variable had.
func (s setting) back() string {
	switch s.kind {
	case "VARCHAR":
		if s.value == "" || s.value == "DEFAULT" {
			return "default"
		}
		fallthrough
	case "ENUM", "SET", "FLAGSET":
		return "'" + strings.ReplaceAll(s.value, "'", "''") + "'"
	}
	return s.value
}

// Locks work as they do by default, whatever the server's variables say, or what is in
// the way is named. Of each variable that can be set while the server runs all values
// are tried, or some that are not its default; many at once where the test is short.
func TestVariables(t *testing.T) {
	t.Parallel()
	p, admin := startPanel(t)
	var singly []setting
	var rounds [][]setting // of each variable one value
	for _, v := range variables(t, admin) {
		others := v.others()
		if len(others) == 0 {
			t.Errorf("no value of %s is known but %q", v.name, v.value)
		}
		for i, o := range others {
			s := setting{v, o}
			if _, ok := refusals[s.String()]; ok || !testing.Short() || v.name == "init_connect" {
				singly = append(singly, s)
				continue
			}
			for len(rounds) <= i {
				rounds = append(rounds, nil)
			}
			rounds[i] = append(rounds[i], s)
		}
	}
	for _, s := range singly {
		p.alone(t, s)
	}
	for _, round := range rounds {
		for batch := range slices.Chunk(round, 40) {
			if err := p.try(t, batch...); err != nil {
				t.Errorf("one of %v: %v", batch, err)
				for _, s := range batch {
					p.alone(t, s)
				}
			}
		}
	}
	if p.uses < 50 {
		t.Errorf("locks were used %d times: is the list of variables empty?", p.uses)
	}
}

// variables are those that can be set while the server runs.
func variables(t *testing.T, db *sql.DB) (list []variable) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `
select lower(variable_name), variable_type, coalesce(global_value, ''), default_value, numeric_min_value, numeric_max_value, enum_value_list
from information_schema.system_variables where read_only = 'NO' and variable_scope in ('GLOBAL', 'SESSION') order by 1`)
	if err != nil { // MySQL's list does not say what can be set, nor what words there are
		rows, err = db.QueryContext(t.Context(), `
select lower(g.variable_name), if(g.variable_value in ('ON', 'OFF'), 'BOOLEAN', if(i.min_value <> i.max_value, 'INT', 'VARCHAR')), g.variable_value,
	null, i.min_value, i.max_value, null
from performance_schema.global_variables g join performance_schema.variables_info i on i.variable_name = g.variable_name order by 1`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v variable
		if err := rows.Scan(&v.name, &v.kind, &v.value, &v.usual, &v.least, &v.most, &v.values); err != nil {
			t.Fatal(err)
		}
		if leftOut[v.name] == "" && !slices.Contains(without, v.name) {
			list = append(list, v)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// So it is with what can only be set when the server starts.
func TestStartupVariables(t *testing.T) {
	for name, settings := range map[string][]string{
		"old": {"innodb-rollback-on-timeout=1", "lower-case-table-names=1", "skip-character-set-client-handshake", "character-set-server=latin1",
			"autocommit=0", "transaction-isolation=SERIALIZABLE", "loose-secure-timestamp=YES"},
		"strange": {"character-set-server=ucs2", "skip-character-set-client-handshake", "sysdate-is-now=1", "innodb-autoinc-lock-mode=0",
			"transaction-read-only=0", "sql-mode=ANSI,EMPTY_STRING_IS_NULL", "loose-thread-handling=pool-of-threads", "loose-performance-schema=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := startPanel(t, settings...)
			if err := p.try(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// So it is with what only sessions have, here by the data source name.
func TestSessionVariables(t *testing.T) {
	t.Parallel()
	p, admin := startPanel(t)
	u, err := url.Parse(p.app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(`grant super, binlog admin, binlog replay, replication slave admin on *.* to ` + u.User.Username() + `@'%'`); err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]string{
		"sql_log_bin=0":               "sql_log_bin is 0",
		"timestamp=1000000000":        "",
		"insert_id=77":                "",
		"last_insert_id=77":           "",
		"rand_seed1=1":                "",
		"pseudo_thread_id=77":         "",
		"skip_replication=1":          "",
		"skip_parallel_replication=1": "",
		"gtid_domain_id=77":           "",
	} {
		db := connect(t, p.app, way{dsn: setting})
		s, err := New(t.Context(), db, nil)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", setting, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", setting, err)
			continue
		}
		defer s.Close()
		c, err := holdfast.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := c.Acquire(t.Context(), setting)
		if err != nil {
			t.Errorf("%s: %v", setting, err)
			continue
		}
		if at := time.UnixMicro(l.Token()); time.Since(at).Abs() > time.Minute {
			t.Errorf("%s: the token is of %v", setting, at)
		}
		if r, err := s.Load(t.Context(), []driver.Key{{Name: setting}}, driver.Fresh); err != nil || r[0].Age < 0 || r[0].Age > time.Minute {
			t.Errorf("%s: the record is %v old, error %v", setting, r[0].Age, err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
