package docs

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
)

// blockTime is longer than any block needs.
const blockTime = 2 * time.Minute

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestBlocks_Run runs each block twice, because each must clean up after itself.
func TestBlocks_Run(t *testing.T) {
	repository := root(t)
	blocks, err := shellblocks.Find(repository)
	if err != nil {
		t.Fatal(err)
	}
	standalone := shellblocks.Of(shellblocks.Standalone, blocks)
	if len(standalone) == 0 {
		t.Fatal("no block marked \"sh test\" found: the README has some")
	}
	for _, b := range standalone {
		t.Run(b.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*blockTime)
			defer cancel()
			r := shellblocks.Runner{
				Dir:  repository,
				Path: []string{filepath.Join(repository, "bin")},
				// A block may write to this directory, so that the repository stays unchanged.
				Env: []string{"TMPDIR=" + t.TempDir()},
			}
			for _, run := range []string{"first", "second"} {
				out, err := r.Run(ctx, b)
				if err != nil {
					t.Fatalf("the %s time: %v", run, err)
				}
				t.Log(out)
			}
		})
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)

// TestLinks_LeadSomewhere: every relative link leads to an existing file and, with a fragment, to a heading in
// it.
func TestLinks_LeadSomewhere(t *testing.T) {
	repository := root(t)
	pages := 0
	err := filepath.WalkDir(repository, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		pages++
		markdown, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(markdown), -1) {
			checkLink(t, path, m[1], strings.TrimPrefix(m[2], "#"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 5 {
		t.Errorf("found %d pages: is %s still the root of the repository?", pages, repository)
	}
}

func checkLink(t *testing.T, page, target, fragment string) {
	t.Helper()
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return // external pages are not checked
	}
	file := page
	if target != "" {
		file = filepath.Join(filepath.Dir(page), target)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		if info, statErr := os.Stat(file); statErr == nil && info.IsDir() && fragment == "" {
			return
		}
		t.Errorf("%s: link to %s: %v", page, target, err)
		return
	}
	if fragment == "" {
		return
	}
	for line := range strings.Lines(string(content)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && anchor(title) == fragment {
			return
		}
	}
	t.Errorf("%s: link to %s#%s: no such heading", page, target, fragment)
}

// anchor returns the fragment of a heading, as GitHub forms it.
func anchor(title string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(title)) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

func TestAnchor(t *testing.T) {
	for title, want := range map[string]string{
		"A first work in five minutes":     "a-first-work-in-five-minutes",
		"`make test`, and what it costs\n": "make-test-and-what-it-costs",
	} {
		if got := anchor(title); got != want {
			t.Errorf("anchor(%q) = %q, want %q", title, got, want)
		}
	}
}
