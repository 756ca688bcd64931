package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestParse_AcceptsEveryFlag(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want Config
	}{
		"defaults": {
			args: []string{"--dir", "/state/hub"},
			want: Config{Dir: "/state/hub", Name: "hub"},
		},
		"relative directory": {
			args: []string{"--dir=hub"},
			want: Config{Dir: filepath.Join(wd, "hub"), Name: "hub"},
		},
		"all": {
			args: []string{"--dir=/state/x", "--name=hub", "--port=6443", "--nodes=2", "--stdin", "--", "--v=2", "--audit-log-path", "a.log"},
			want: Config{
				Dir: "/state/x", Name: "hub", Port: 6443, Nodes: 2, StopWithStdin: true,
				APIServerFlags: []string{"--v=2", "--audit-log-path", "a.log"},
			},
		},
		"version needs no directory": {
			args: []string{"--version"},
			want: Config{ShowVersion: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.args)
			if err != nil {
				t.Fatalf("Parse(%q): %v", tc.args, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", tc.args, diff)
			}
		})
	}
}

func TestParse_ErrorNamesFieldAndRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no directory":       {nil, "--dir is required"},
		"unknown flag":       {[]string{"--dir=x", "--names=a,b"}, "--names"},
		"stray argument":     {[]string{"--dir=x", "hub"}, `"hub": flags for kube-apiserver go after --`},
		"stray before dash":  {[]string{"--dir=x", "hub", "--", "--v=2"}, `"hub"`},
		"port too high":      {[]string{"--dir=x", "--port=65536"}, "--port 65536"},
		"port negative":      {[]string{"--dir=x", "--port=-1"}, "--port -1"},
		"port not a number":  {[]string{"--dir=x", "--port=https"}, "--port"},
		"nodes negative":     {[]string{"--dir=x", "--nodes=-1"}, "--nodes -1"},
		"too many nodes":     {[]string{"--dir=x", "--nodes=1001"}, "--nodes 1001"},
		"bad name":           {[]string{"--dir=x", "--name=my hub"}, `--name is "my hub"`},
		"directory no name":  {[]string{"--dir=/"}, "pass a --name"},
		"directory bad name": {[]string{"--dir=/state/my hub"}, "pass a --name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.args)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse(%q) = %v, want an error with %q", tc.args, err, tc.want)
			}
		})
	}
}

func TestParse_Help(t *testing.T) {
	for _, arg := range []string{"--help", "-h"} {
		if _, err := Parse([]string{arg}); !errors.Is(err, pflag.ErrHelp) {
			t.Errorf("Parse(%s) = %v, want pflag.ErrHelp", arg, err)
		}
	}
	for _, flag := range []string{"--dir", "--name", "--port", "--nodes", "--stdin", "--version", "-- kube-apiserver flags"} {
		if !strings.Contains(Usage(), flag) {
			t.Errorf("the help text lacks %s", flag)
		}
	}
}
