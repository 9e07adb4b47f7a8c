import json,subprocess,sys,os,random,time
b='/work/main/build'
os.environ.update(OMP_NUM_THREADS='1',OMP_WAIT_POLICY='passive')
kinds={'adam':'--optimizer adam --average 0.9','momgrow':'--dynamic --rows 840 --replace-oldest --optimizer momentum --average 0.9 --clip-norm 0.05','grow':'--dynamic --rows 840 --admit-after 2 --evict-unused-for 3 --optimizer adam','ftrl':'--optimizer ftrl --clip-norm 0.05'}
base='--threads 1 --batch 64 --lanes 8 --steps 12'.split()
def res(pre,args):
    rep='/tmp/rows_fz_%d.json'%os.getpid()
    if os.path.exists(rep): os.remove(rep)
    r=subprocess.run(pre+[b+'/test/tables_program']+args+['--report',rep],capture_output=True,text=True,timeout=200)
    if r.returncode: return ('rc',r.returncode,r.stderr[-600:])
    j=json.load(open(rep)); return (j['weights_sha256'],json.dumps(j.get('tables')),j.get('lost_steps',0) or 0)
rnd=random.Random(int(sys.argv[1])); end=time.time()+float(sys.argv[2])
ref={}; n=bad=0
while time.time()<end:
    k=rnd.choice(list(kinds)); a=base+kinds[k].split()
    if '--rows' not in a: a+=['--rows','5000']
    if k not in ref: ref[k]=res([],a)
    w=rnd.choice([2,3,4]); victims=rnd.sample(range(w),rnd.randint(1,w-1)); 
    same=rnd.randint(2,10)
    m=','.join('%d@%d/soon%d'%(v,same if rnd.random()<.5 else rnd.randint(2,10),rnd.randint(50,6000)) for v in victims)
    got=res([b+'/bin/tutti','run','-n',str(w),'--min','1','--'],a+['--comm','shm','--misfortune',m]); n+=1
    if got[:2]!=ref[k][:2] or got[2]!=0: bad+=1; print('BAD',k,w,m,got,ref[k],flush=True)
    elif n%5==0: print(n,'runs',bad,'bad',flush=True)
print('end',n,'runs',bad,'bad')
