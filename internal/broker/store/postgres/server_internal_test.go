package postgres

import (
	"strings"
	"testing"
)

// TestServer_ProblemsAndWarnings checks what a broker reports of a server.
func TestServer_ProblemsAndWarnings(t *testing.T) {
	good := server{
		version: 150018, versionText: "15.18", encoding: "UTF8", checksums: "on", fsync: "on", fullPages: "on", synchronous: "on", standbys: "a",
	}
	for what, c := range map[string]struct {
		change  func(*server)
		problem string
		warning string
	}{
		"good":               {func(*server) {}, "", ""},
		"old":                {func(s *server) { s.version, s.versionText = 140001, "14.1" }, "version 14.1", ""},
		"standby":            {func(s *server) { s.isStandby = true }, "standby", ""},
		"encoding":           {func(s *server) { s.encoding = "SQL_ASCII" }, "SQL_ASCII", ""},
		"no data checksums":  {func(s *server) { s.checksums = "off" }, "", "pg_checksums"},
		"no fsync":           {func(s *server) { s.fsync = "off" }, "", "fsync"},
		"no full pages":      {func(s *server) { s.fullPages = "off" }, "", "full_page_writes"},
		"asynchronous":       {func(s *server) { s.synchronous = "off" }, "", "synchronous_commit is off"},
		"no standby":         {func(s *server) { s.standbys = " " }, "", "failover"},
		"no wait for it":     {func(s *server) { s.synchronous = "local" }, "", "failover"},
		"behind a PgBouncer": {func(s *server) { s.isPooled = true }, "", "pooler"},
	} {
		s := good
		c.change(&s)
		problem := ""
		if d := s.problem(); d != nil {
			problem = d.problem
		}
		warnings := strings.Join(s.warnings(), "\n")
		if !strings.Contains(problem, c.problem) || (problem == "") != (c.problem == "") {
			t.Errorf("%s: problem %q", what, problem)
		}
		if !strings.Contains(warnings, c.warning) || (warnings == "") != (c.warning == "") {
			t.Errorf("%s: warnings %q", what, warnings)
		}
	}
}

// TestWithDefaults: a connection string keeps its own settings.
func TestWithDefaults(t *testing.T) {
	for in, want := range map[string]string{
		"host=h":                           "sslmode=verify-full target_session_attrs=read-write connect_timeout=5 host=h",
		"postgres://h/d":                   "postgres://h/d?sslmode=verify-full&target_session_attrs=read-write&connect_timeout=5",
		"postgresql://h/d?sslmode=require": "postgresql://h/d?sslmode=require&target_session_attrs=read-write&connect_timeout=5",
		"postgres://h/d?connect_timeout=9&target_session_attrs=any&sslmode=disable": "postgres://h/d?connect_timeout=9&target_session_attrs=any&sslmode=disable",
	} {
		if got := withDefaults(in); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}
