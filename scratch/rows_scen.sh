cd /work/main/build
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
run() { # n misfortune flags...
  n=$1; m=$2; shift 2; rm -f /tmp/rows_rep.json
  timeout 100 bin/tutti run -n $n --min 1 -- test/tables_program --threads 1 --batch 8 --lanes 8 --steps 16 --rows 700 "$@" --misfortune "$m" --report /tmp/rows_rep.json > /tmp/rows_out.log 2>&1
  echo "rc $? n=$n m=$m $* $(python3 -c "
import json
r=json.load(open('/tmp/rows_rep.json')); print(r.get('weights_sha256')[:16], r.get('lost_steps'), r.get('world'), json.dumps(r.get('tables'))[:300])" 2>&1 | tail -1)"
}
ref() { timeout 100 test/tables_program --threads 1 --batch 8 --lanes 8 --steps 16 --rows 700 "$@" --report /tmp/rows_rep.json > /tmp/rows_out.log 2>&1; echo "ref $* $(python3 -c "
import json
r=json.load(open('/tmp/rows_rep.json')); print(r.get('weights_sha256')[:16], json.dumps(r.get('tables'))[:300])")"; }
A="--optimizer mortal --bare"
ref $A; run 3 "1@5/update" $A --comm shm; run 2 "0@3/update" $A --comm shm; run 4 "0@10/before,1@10/before,3@10/before" $A --comm shm
G="--dynamic --rows 840 --admit-after 2 --evict-unused-for 3 --optimizer adam --average 0.9"
ref $G; run 3 "1@4/soon400,0@9/before" $G --comm shm; run 3 "1@4/soon1500,2@8/soon700" $G --comm shm; run 3 "1@4/lane" $G --comm tcp
