package architecture

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// skippedFolders lists folders without texts of the project: built programs, and caches of tools. Hidden folders
// are skipped too, except those in shownFolders.
var (
	skippedFolders = []string{"bin", "vendor", "node_modules"}
	shownFolders   = []string{".ci", ".github"}
)

// maxTextFile is the limit of the size of a file, in bytes. Larger files are data.
const maxTextFile = 2 << 20

// treeTexts returns the texts of all folders and files below dir, and the paths that could not be
// parsed. It only parses: the tree need not compile. Files that ignored names are left out.
func treeTexts(dir string, ignored func(path string) bool) (texts []text, broken []string, err error) {
	folders := map[string]bool{".": true}
	err = walkFiles(dir, func(name string, src []byte) error {
		if ignored(name) {
			return nil
		}
		for folder := path.Dir(name); !folders[folder]; folder = path.Dir(folder) {
			folders[folder] = true
			texts = append(texts, text{folder, 0, kindName, path.Base(folder)})
		}
		found, err := fileTexts(name, src)
		if err != nil {
			broken = append(broken, name)
		}
		texts = append(texts, found...)
		return nil
	})
	return texts, broken, err
}

// walkFiles calls visit for each text file below dir, with its path relative to dir. It leaves out test data, as
// isTestData defines it.
func walkFiles(dir string, visit func(name string, src []byte) error) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if file != dir && skipsFolder(e.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if info, err := e.Info(); err != nil || !e.Type().IsRegular() || info.Size() > maxTextFile {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil || isTestData(filepath.ToSlash(rel)) {
			return err
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return visit(filepath.ToSlash(rel), src)
	})
}

func skipsFolder(name string) bool {
	return slices.Contains(skippedFolders, name) || strings.HasPrefix(name, ".") && !slices.Contains(shownFolders, name)
}

// isTestData reports whether a file contains only data, such as expected output, a fuzz input, or a file of a
// former release. The scripts and the tests of alerts below testdata contain texts of the project.
func isTestData(name string) bool {
	folder := path.Dir(name)
	return slices.Contains(strings.Split(folder, "/"), "testdata") &&
		path.Ext(name) != ".txtar" && folder != "test/alerts/testdata"
}

// fileTexts returns the texts of one file: its name, and the texts in its content.
func fileTexts(name string, src []byte) ([]text, error) {
	texts := []text{{name, 0, kindName, path.Base(name)}}
	var found []text
	var err error
	switch base, ext := path.Base(name), path.Ext(name); {
	case ext == ".go":
		found, err = goTexts(name, src)
	case ext == ".md":
		found = markdownTexts(name, src)
	case ext == ".proto":
		found = protoTexts(name, src)
	case ext == ".patch":
		found = patchTexts(name, src)
	case ext == ".txtar":
		found = scriptTexts(name, src)
	case base == "go.mod" || base == "go.sum" || base == "LICENSE" || bytes.IndexByte(src, 0) >= 0:
	case slices.Contains(hashFiles, ext):
		found = hashTexts(name, src)
	}
	return append(texts, found...), err
}

// hashFiles lists the extensions of files with comments that begin with #, or without comments.
var hashFiles = []string{"", ".yaml", ".yml", ".sh", ".tpl", ".conf", ".json", ".txt"}

var protoName = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// protoTexts returns the comments of a proto file, and the words of its other lines as names.
func protoTexts(name string, src []byte) []text {
	var texts []text
	var comment []numberedLine
	for number, line := range numberedLines(src) {
		code, words, found := strings.Cut(line, "//")
		for _, id := range protoName.FindAllString(code, -1) {
			texts = append(texts, text{name, number, kindName, id})
		}
		if strings.TrimSpace(code) != "" || !found {
			texts = append(texts, paragraphs(name, kindComment, comment)...)
			comment = nil
		}
		if found {
			comment = append(comment, numberedLine{number, strings.TrimPrefix(words, " ")})
		}
	}
	return append(texts, paragraphs(name, kindComment, comment)...)
}

// patchTexts returns the header of a patch. The rest is source code, which is checked in its own file.
func patchTexts(name string, src []byte) []text {
	var texts []text
	for number, line := range numberedLines(src) {
		if strings.HasPrefix(line, "diff ") || strings.HasPrefix(line, "--- ") {
			break
		}
		if line != "" {
			texts = append(texts, text{name, number, kindNote, strings.TrimLeft(line, "# ")})
		}
	}
	return texts
}

var scriptFile = regexp.MustCompile(`^-- (.+) --$`)

// scriptTexts returns the comments of a test script, and the names of its files. The contents of these files are
// expected output, and data.
func scriptTexts(name string, src []byte) []text {
	var texts []text
	inScript := true
	for number, line := range numberedLines(src) {
		comment, isComment := strings.CutPrefix(line, "#")
		switch file := scriptFile.FindStringSubmatch(line); {
		case file != nil:
			inScript = false
			texts = append(texts, text{name, number, kindName, file[1]})
		case inScript && isComment:
			texts = append(texts, text{name, number, kindNote, strings.TrimSpace(comment)})
		}
	}
	return texts
}

var hashComment = regexp.MustCompile(`(?:^|\s)#+\s?(.*)$`)

// hashTexts returns the comments and the other lines of YAML, scripts, Makefiles and the like.
func hashTexts(name string, src []byte) []text {
	var texts []text
	for number, line := range numberedLines(src) {
		if at := hashComment.FindStringSubmatchIndex(line); at != nil && path.Ext(name) != ".json" {
			texts = append(texts, text{name, number, kindNote, line[at[2]:at[3]]})
			line = line[:at[0]]
		}
		if line = strings.TrimSpace(line); line != "" {
			texts = append(texts, text{name, number, kindCode, line})
		}
	}
	return texts
}

// numberedLines yields the lines of a file with their numbers, which begin with 1.
func numberedLines(src []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		lines := bufio.NewScanner(bytes.NewReader(src))
		lines.Buffer(nil, maxTextFile)
		for number := 1; lines.Scan(); number++ {
			if !yield(number, lines.Text()) {
				return
			}
		}
	}
}
