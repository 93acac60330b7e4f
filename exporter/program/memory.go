package program

const (
	// maxResident is the budget: how many bytes of the process may be resident, its file pages
	// included, however much memory there is.
	maxResident = 160 << 20
	// filePages are those of the program file, which no limit of the heap has in it.
	filePages = 36 << 20
	// fixed is what the program takes without any pod, device or reader.
	fixed = filePages + 22<<20
	// garbage is kept back from a smaller budget: what a tick leaves shrinks less than the parts do.
	garbage = 16 << 20
	// minShare is the share with which the program still works as it should; with less memory it takes
	// more than its budget.
	minShare = 1. / 16
	// fullSeries is how many series there may be with the full budget, unless the flag says less.
	fullSeries = 6 << 14
	rowBytes   = 6 << 10 // of an allocation or a pod of it, from the join to the page
)

// memory divides a budget among the parts of the program.
type memory struct {
	budget int64
	share  float64 // of what a part takes of the full budget
}

// newMemory returns the division of a limit of memory ($GOMEMLIMIT), or of maxResident if that is
// smaller.
func newMemory(limit int64) memory {
	budget := min(limit, maxResident)
	return memory{budget, max(minShare, float64(budget-fixed-garbage)/(maxResident-fixed-garbage))}
}

// heap returns the limit of what Go's runtime takes, a tenth less than the file pages leave: it
// collects garbage more often near it, and exceeds it for a short time.
func (m memory) heap() int64 { return (max(m.budget, fixed) - filePages) / 10 * 9 }

// of returns what a part that takes so many bytes of the full budget takes.
func (m memory) of(full int) int { return int(m.share * float64(full)) }

// series returns how many series there may be: as many as the flag says, or fewer with less than
// the full budget.
func (m memory) series(flag int) int {
	if most := m.of(fullSeries); m.share < 1 && (flag == 0 || flag > most) {
		return most
	}
	return flag
}
